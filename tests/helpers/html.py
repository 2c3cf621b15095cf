"""Pictures inside HTML."""

import base64
import re

import cv2
import numpy as np


def picture_in(html: str) -> np.ndarray:
    """Return the only picture of some HTML: uint8 RGB (H,W,3)."""
    (encoded,) = re.findall(r'<img src="data:image/png;base64,([^"]+)">', html)
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(encoded), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return pixels[:, :, ::-1]
