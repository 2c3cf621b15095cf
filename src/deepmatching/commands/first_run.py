"""Compiling in two processes at once, the first time that a command computes a flow on a machine."""

import os
import subprocess
import sys
import tempfile

from deepmatching.kernels.first_run import at_compilation


def share_compilation() -> None:
    """Let another process help if kernels have to be compiled: it begins with the last kernel of flow.

    Numba compiles in one thread only. Both processes store what they compile, and meet halfway.
    """
    if (os.cpu_count() or 1) > 1 and _start not in at_compilation:
        at_compilation.append(_start)


def _start() -> None:
    nothing = subprocess.DEVNULL
    subprocess.Popen([sys.executable, "-P", "-m", __name__], stdin=nothing, stdout=nothing, stderr=nothing)


def compile_backwards() -> None:
    """Run the stages of flow on a small image, the last one first."""
    import torch

    from deepmatching.flow import PRESETS
    from deepmatching.flow.pipeline import matches_to_flow
    from deepmatching.flow.refinement import refine_finite
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches

    torch.set_num_threads(1)
    settings, image = PRESETS["default"], torch.rand(3, 64, 64)
    refine_finite(torch.zeros(64, 64, 2), image, image, settings.refinement)
    points = torch.cartesian_prod(torch.arange(4, 64, 8), torch.arange(4, 64, 8)).float()
    matches_to_flow(Matches(points, points, torch.ones(len(points))), image, image, settings)
    DeepMatcher.from_pretrained().flow(image, image)


def main() -> None:
    """Compile, unless another process of this user does so."""
    from filelock import FileLock, Timeout

    user = os.getuid() if hasattr(os, "getuid") else 0  # elsewhere, users have temporary folders of their own
    try:
        with FileLock(os.path.join(tempfile.gettempdir(), f"deepmatching-{user}.lock"), timeout=0):
            compile_backwards()
    except Timeout:
        pass


if __name__ == "__main__":
    main()
