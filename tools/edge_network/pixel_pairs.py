"""More pairs of pixels by augmenting paths (see ``edge_network.evaluation``), compiled by Numba."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def augment(alone: Any, second: Any, steps: Any, partner: Any) -> None:
    """Give as many more pixels a partner as possible; those that have one keep one, but not always the same.

    An augmenting path leads from a pixel without a partner to one of ``second`` near it, on to that one's partner, and
    so forth, until one of ``second`` is free. Then all pixels of the path change partners. Each pixel of ``alone``
    searches for a path, depth first.

    Args:
        alone: pixels of ``first`` without a partner, as indices of the flattened image.
        second: bool, the flattened image; no step from a pixel of ``first`` leaves it.
        steps: to the neighbours, nearest first.
        partner: int64, the partner of each pixel of ``second``, −1 for none; changed in place.
    """
    # ``stack`` holds the pixels of ``first`` on the path, ``chosen`` the pixel of ``second`` through which each was
    # left, and ``tried`` the number of steps from it that have been examined.
    stack, chosen, tried, seen = np.empty((4, np.count_nonzero(second) + 1), np.int64)
    stamp = np.zeros(len(second), np.int64)  # number of the last search that saw a pixel
    dead = len(alone) + 1  # stamp of what a failed search has seen: no other search needs it
    for number in range(1, len(alone) + 1):
        depth, stack[0], tried[0], count = 0, alone[number - 1], 0, 0
        found = False
        while depth >= 0 and not found:
            if tried[depth] == len(steps):
                depth -= 1
                continue
            pixel = stack[depth] + steps[tried[depth]]
            tried[depth] += 1
            if not second[pixel] or stamp[pixel] == number or stamp[pixel] == dead:
                continue
            stamp[pixel], seen[count] = number, pixel
            count += 1
            chosen[depth] = pixel
            if partner[pixel] < 0:
                found = True
            else:
                depth += 1
                stack[depth], tried[depth] = partner[pixel], 0
        if found:
            for d in range(depth + 1):
                partner[chosen[d]] = stack[d]
        else:
            for n in range(count):
                stamp[seen[n]] = dead
