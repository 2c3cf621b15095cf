"""What tests of the explorer share."""

from __future__ import annotations

import subprocess

import cv2
import numpy as np
import pytest

from deepmatching.explorer.results import RunSettings

#: Quick settings.
QUICK = RunSettings("hog", 16)

#: The same for the command.
QUICK_SERVER = ("--model", "hog", "--radius", "16", "--port", "0", "--no-browser")


def png(image: np.ndarray) -> bytes:
    """An RGB picture as a PNG file."""
    return bytes(cv2.imencode(".png", np.ascontiguousarray(image[:, :, ::-1]))[1].tobytes())


class Server:
    """``deepmatching explore`` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        for line in process.stderr:
            if "http://" in line:
                self.address = line.split(" at ")[1].split(" ")[0]
                return
        pytest.fail("the explorer did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
