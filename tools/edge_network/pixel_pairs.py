"""More pairs of pixels by augmenting paths (see ``edge_network.evaluation``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepmatching.operators.cpu.compilation import kernel


@kernel
def augment(alone: Any, second: Any, steps: Any, partner: Any) -> None:
    """See :func:`edge_network.evaluation.augment`.

    ``stack`` holds the pixels of ``first`` on the path, ``chosen`` the pixel of ``second`` by which each was left, and
    ``tried`` how many steps from it have been looked at.
    """
    stack, chosen, tried, seen = np.empty((4, np.count_nonzero(second) + 1), np.int64)
    stamp = np.zeros(len(second), np.int64)  # number of the last search that saw a pixel
    dead = len(alone) + 1
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
