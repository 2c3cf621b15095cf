"""Optical flow on disk: Middlebury .flo, KITTI 16-bit .png, .pfm and .npy.

In memory, a flow is float32 (H,W,2): the displacement (x,y) of every pixel, in pixels, or NaN where unknown.
"""

import io
import math
import re

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import read_npy, unmasked
from deepmatching.io.files import PathLike, check_suffix, read_bytes, signed, write_file
from deepmatching.io.image_files import decode_image_file

_SUFFIXES = (".flo", ".png", ".pfm", ".npy")
_FLO_MAGIC = b"PIEH"  # 202021.25 as a little-endian float
_FLO_UNKNOWN_ABOVE = 1e9  # by definition of the format
_MAX_SIDE = 1_000_000  # a larger size comes from a damaged header
_KITTI_SCALE = 64.0  # KITTI stores 64·u + 2^15 in 16 bits
_KITTI_OFFSET = 32768.0


def read_flow(path: PathLike) -> np.ndarray:
    """Read a flow in the format that the suffix names: float32 (H,W,2), NaN where unknown."""
    suffix = check_flow_suffix(path)
    if suffix == ".png":
        return _decode_kitti(path)
    if suffix == ".npy":
        flow = _flow_of(read_npy(path, "flow file"), path)
    else:
        flow = (_decode_flo if suffix == ".flo" else _decode_pfm)(read_bytes(path, "flow file"), path)
    with np.errstate(invalid="ignore"):
        unknown = ~(np.abs(flow) <= _FLO_UNKNOWN_ABOVE).all(axis=2)
    flow[unknown] = np.nan
    return flow


def write_flow(path: PathLike, flow: np.ndarray) -> None:
    """Write a flow (H,W,2) in the format that the suffix names; NaN and infinity mean unknown.

    .flo, .pfm and .npy keep float32 exactly; KITTI .png rounds to 1/64 px and holds −512 to 511.98 px.
    """
    suffix = check_flow_suffix(path)
    flow = _flow_of(unmasked(flow, "flow"))
    flow[~np.isfinite(flow).all(axis=2)] = np.nan
    encode = {".flo": _encode_flo, ".png": _encode_kitti, ".pfm": _encode_pfm, ".npy": _encode_npy}[suffix]
    write_file(path, encode(flow))


def check_flow_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raise unless it names a flow format."""
    return check_suffix(path, _SUFFIXES, "flow")


def _damaged(path: PathLike, what: str) -> DeepMatchingError:
    return DeepMatchingError(f"The flow file '{path}' {what}; check it or write it again.")


def _floats(data: bytes, start: int, shape: tuple[int, int, int], dtype: str, path: PathLike) -> np.ndarray:
    """Return the float32 values of `shape`, which must fill `data` from `start` to its end."""
    size, expected, found = f"{shape[1]} x {shape[0]}", 4 * math.prod(shape), len(data) - start
    if not all(0 < side <= _MAX_SIDE for side in shape):
        raise _damaged(path, f"states an impossible size of {size}")
    if found != expected:
        raise _damaged(path, f"has {found} bytes of data, but its header says {size}: {expected} bytes")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _decode_flo(data: bytes, path: PathLike) -> np.ndarray:
    """Decode 4 bytes magic, int32 width, int32 height, then float32 (H,W,2); all little-endian."""
    if len(data) < 12 or data[:4] != _FLO_MAGIC:
        raise _damaged(path, "is not a Middlebury .flo file (its first four bytes are not PIEH)")
    width, height = (int(side) for side in np.frombuffer(data, "<i4", count=2, offset=4))
    return _floats(data, 12, (height, width, 2), "<f4", path).astype(np.float32)


def _encode_flo(flow: np.ndarray) -> bytes:
    height, width = flow.shape[:2]
    known = np.where(np.isnan(flow), np.float32(1e10), flow)
    return _FLO_MAGIC + np.array([width, height], "<i4").tobytes() + known.astype("<f4").tobytes()


def _decode_pfm(data: bytes, path: PathLike) -> np.ndarray:
    """Decode 'PF', width, height and scale as text, then float32 (H,W,3) from the bottom row up.

    The sign of the scale gives the byte order. Its magnitude and the third channel are ignored, as by other readers.
    """
    # One whitespace character ends the header, and the first float may begin with a byte that looks like one.
    header = re.match(rb"PF\s+(\d{1,9})\s+(\d{1,9})\s+([-+]?)[\d.eE+-]+\s", data[:200])
    if header is None:
        kind = "has one channel (is it a disparity map?)" if data.startswith(b"Pf") else "does not begin with PF, sizes"
        raise _damaged(path, f"{kind}, but a flow is a colour .pfm file")
    shape = int(header[2]), int(header[1]), 3
    values = _floats(data, header.end(), shape, "<f4" if header[3] == b"-" else ">f4", path)
    return values[::-1, :, :2].astype(np.float32)


def _encode_pfm(flow: np.ndarray) -> bytes:
    height, width = flow.shape[:2]
    channels = np.zeros((height, width, 3), "<f4")
    channels[:, :, :2] = flow[::-1]
    return f"PF\n{width} {height}\n-1.0\n".encode("ascii") + channels.tobytes()


def _flow_of(array: np.ndarray, path: PathLike | None = None) -> np.ndarray:
    """Return a copy of a flow as float32; raise for other arrays, with the path of their file."""
    if array.ndim != 3 or array.shape[2] != 2 or array.size == 0 or array.dtype.kind not in "fiu":
        where = "" if path is None else f" in '{path}'"
        found = f"{array.dtype} {array.shape}"
        raise DeepMatchingError(f"A flow{where} must be a non-empty array (H,W,2) of real numbers, not {found}.")
    with np.errstate(over="ignore"):  # too large is unknown
        return array.astype(np.float32)


def _encode_npy(flow: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, flow, allow_pickle=False)
    return stream.getvalue()


def _decode_kitti(path: PathLike) -> np.ndarray:
    """Decode uint16 RGB: 64·u + 2^15, 64·v + 2^15, and 1 where valid."""
    pixels = decode_image_file(path, cv2.IMREAD_UNCHANGED, "flow file")
    if pixels.dtype != np.uint16 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise _damaged(path, "is not a KITTI flow (a PNG with three channels of 16 bits)")
    valid, encoded = pixels[:, :, 0] > 0, pixels[:, :, :0:-1].astype(np.float32)  # BGR
    flow = (encoded - np.float32(_KITTI_OFFSET)) / np.float32(_KITTI_SCALE)
    flow[~valid] = np.nan
    return flow


def _encode_kitti(flow: np.ndarray) -> bytes:
    valid = ~np.isnan(flow).any(axis=2)
    encoded = np.rint(np.where(valid[:, :, None], flow, 0.0) * _KITTI_SCALE + _KITTI_OFFSET)
    if encoded.min() < 0 or encoded.max() > 65535:
        raise DeepMatchingError("A KITTI .png holds displacements from -512 to 511.98 px; write .flo, .pfm or .npy.")
    bgr = np.dstack([np.ones(valid.shape), encoded[:, :, ::-1]]) * valid[:, :, None]
    written, data = cv2.imencode(".png", bgr.astype(np.uint16))
    if not written:
        raise DeepMatchingError(f"OpenCV cannot encode a PNG of {flow.shape[1]} x {flow.shape[0]} pixels.")
    return signed(data.tobytes())
