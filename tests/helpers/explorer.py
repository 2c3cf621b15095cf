"""What tests of the explorer share."""

import json
import subprocess
from typing import Any

import cv2
import numpy as np
import pytest

from deepmatching.explorer.results import RunSettings

#: Quick settings.
QUICK = RunSettings("hog", 16)

#: The same for the command.
QUICK_SERVER = ("--model", "hog", "--radius", "16", "--port", "0", "--no-browser")


def png(image: np.ndarray) -> bytes:
    """Return an RGB picture as a PNG file."""
    return bytes(cv2.imencode(".png", np.ascontiguousarray(image[:, :, ::-1]))[1].tobytes())


def unpack(block: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the meta and the arrays of a block, as the page reads them."""
    length = int.from_bytes(block[:4], "little")
    header = json.loads(block[4 : 4 + length])
    arrays = {}
    for entry in header["arrays"]:
        dtype, count = np.dtype(entry["dtype"]), int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(block, dtype.newbyteorder("<"), count, 4 + length + entry["offset"])
        array = array.reshape(entry["shape"]).astype(dtype)
        if "step" in entry:
            array = array.astype(np.float32) * np.float32(entry["step"])
        elif "low" in entry:
            scale = (entry["high"] - entry["low"]) / 254
            array = np.where(array == 0, -np.inf, entry["low"] + (array.astype(np.float64) - 1) * scale)
        arrays[entry["name"]] = array.astype(np.float32) if "low" in entry else array
    return header["meta"], arrays


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
