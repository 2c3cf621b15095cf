"""Max pooling of a score map that arrives row by row, so that it never has to be stored.

Cell k of the pooled map is the maximum of the cells 2k + offset + d, d ∈ {−reach … reach}², and its switch the raster
index of the first d that attains it. Both steps, along a row and over side = 2·reach + 1 rows, let the first win.

A negative score counts as 0, and −1 stands for missing cells, which never win.

Buffers, of widths that are multiples of the longest vector, so that loops over them leave no remainder:

* ``halves`` (2, ≥ width + reach): a row of the map, cell x at [n % 2, n // 2], n = x + reach − offset; −1 elsewhere;
* ``best`` (maps, side + 1, width): maxima along row y at y mod side; the last row is −1 and stands for missing rows;
* ``code`` (maps, side + 1, width), int32: where they are, 0 … side − 1.

Functions get whole arrays and indices: passing on a part of an array would count references to it, atomically.
"""

import numpy as np

from deepmatching.kernels.cpu.compilation import helper
from deepmatching.kernels.cpu.matching.power import raised

NO_CELL = np.float32(-1)
ONE = np.float32(1)


@helper
def vector_width(width):
    """Return the next multiple of 16, the longest vector of float32."""
    return (width + 15) // 16 * 16


@helper
def pool_row(halves, best, code, n, y):
    """Pool along row y of map n: best[x] = max of cell 2x + d, code[x] = the first d < side that attains it."""
    side, width = best.shape[1] - 1, best.shape[2]
    at = y % side
    for x in range(width):
        a, b, c = halves[0, x], halves[1, x], halves[0, x + 1]
        value = max(max(a, b), c)
        best[n, at, x] = value
        code[n, at, x] = np.int32(0) if a == value else (np.int32(1) if b == value else np.int32(2))
    for d in range(3, side):
        for x in range(width):
            value = halves[d % 2, x + d // 2]
            if value > best[n, at, x]:
                best[n, at, x] = value
                code[n, at, x] = d


@helper
def pool_rows(best, code, n, centre, rows, exponent, pooled, switches):
    """Pool the windows of map n, of ``rows`` rows, around row ``centre`` = 2k + offset, and raise to the power ν.

    The results, (width,), are float32 and int32.
    """
    side, width = best.shape[1] - 1, best.shape[2]
    first = centre - side // 2
    i, j, k = _place(first, rows, side), _place(first + 1, rows, side), _place(first + 2, rows, side)
    second, third = np.int32(side), np.int32(2 * side)
    for x in range(width):
        a, b, c = best[n, i, x], best[n, j, x], best[n, k, x]
        value = max(max(a, b), c)
        pooled[x] = value
        switches[x] = code[n, i, x] if a == value else (second + code[n, j, x] if b == value else third + code[n, k, x])
    for d in range(3, side):
        i = _place(first + d, rows, side)
        for x in range(width):
            if best[n, i, x] > pooled[x]:
                pooled[x] = best[n, i, x]
                switches[x] = d * side + code[n, i, x]
    if exponent != ONE:
        for x in range(width):
            pooled[x] = raised(pooled[x], exponent)


@helper
def _place(y, rows, side):
    """Return where the maxima of row y are."""
    return y % side if 0 <= y < rows else side
