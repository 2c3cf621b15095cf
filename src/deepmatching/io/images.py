"""One way in for every kind of image: `load_image` gives a float tensor (C,H,W) in [0,1]."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import cv2
import numpy as np
import torch

from deepmatching.errors import DeepMatchingError


@runtime_checkable
class PILImage(Protocol):
    """What is asked of a PIL image, which is recognised without importing PIL."""

    @property
    def mode(self) -> str: ...

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> PILImage: ...


ImageLike: TypeAlias = "str | os.PathLike[str] | np.ndarray | torch.Tensor | PILImage"

# The value that stands for white; a float image is in [0,1] already.
_WHITE: dict[torch.dtype, float] = {
    torch.bool: 1.0,
    torch.uint8: 255.0,
    torch.uint16: 65535.0,
    torch.float16: 1.0,
    torch.bfloat16: 1.0,
    torch.float32: 1.0,
    torch.float64: 1.0,
}
_ARRAY_DTYPES = ("bool", "uint8", "uint16", "float16", "float32", "float64")
_DTYPE_RULE = "convert it to uint8 (0 to 255), uint16 (0 to 65535), bool or float (0 to 1)"
# Resampling overshoots a little, while an image in 0..255 exceeds these bounds unless it is nearly black.
_FLOAT_RANGE = (-0.5, 1.5)


def load_image(image: ImageLike, name: str = "image") -> torch.Tensor:
    """Return `image` as float32 (C,H,W), C = 1 (grey) or 3 (RGB), values in [0,1].

    * A path: any format OpenCV decodes, 8 or 16 bits; EXIF orientation is applied and alpha dropped.
    * A NumPy array: (H,W), (H,W,1), RGB (H,W,3) or RGBA (H,W,4).
    * A torch tensor: (H,W), (C,H,W) or (1,C,H,W) with C = 1, 3 or 4. It stays on its device, and a float
      tensor stays part of the autograd graph.
    * A PIL image of any mode; its EXIF orientation is not applied, just as PIL itself does not.

    uint8 is divided by 255 and uint16 by 65535; bool is 0 or 1; float must be in [0,1] already, where a
    small overshoot is let through unchanged. `name` is what error messages call the image.
    """
    if isinstance(image, torch.Tensor):
        return _scale_to_unit(_planar_from_tensor(image, name), name)
    if isinstance(image, np.ndarray):
        return _scale_to_unit(_planar_from_array(image, name), name)
    if isinstance(image, str | os.PathLike):
        array = decode_image_file(image, cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH, name)
        if array.ndim == 3 and array.shape[2] == 3:
            array = array[:, :, ::-1]  # OpenCV decodes to BGR
        name = f"{name} ('{os.fspath(image)}')"
        return _scale_to_unit(_planar_from_array(array, name), name)
    if isinstance(image, PILImage):
        return _scale_to_unit(_planar_from_array(_array_from_pil(image, name), name), name)
    raise DeepMatchingError(
        f"The {name} is a {type(image).__name__}; pass a path, a NumPy array, a torch tensor or a PIL image."
    )


def decode_image_file(path: str | os.PathLike[str], flags: int, name: str = "image") -> np.ndarray:
    """Decode an image file with `cv2.imdecode` and its `flags` to (H,W) or (H,W,C), channels in BGR order.

    The bytes are read here because OpenCV cannot open paths with non-ASCII characters on Windows, and are
    checked for completeness because some OpenCV versions fill the missing part of a cut file with grey.
    """
    data = _read_bytes(path, name)
    if not _is_complete(data):
        raise DeepMatchingError(f"The {name} '{path}' is damaged or cut short; copy or download it again.")
    try:
        with _quiet_opencv():
            array = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _not_an_image(path, name) from error
    if array is None:
        raise _not_an_image(path, name)
    return np.asarray(array)


def _not_an_image(path: str | os.PathLike[str], name: str) -> DeepMatchingError:
    return DeepMatchingError(
        f"The {name} '{path}' cannot be decoded (no image, an unknown format, damaged or cut short); "
        "check the file or convert it to PNG or JPEG."
    )


def _read_bytes(path: str | os.PathLike[str], name: str) -> bytes:
    try:
        if Path(path).is_dir():
            raise DeepMatchingError(f"The {name} '{path}' is a folder; give the name of an image file.")
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise DeepMatchingError(f"There is no {name} '{path}'; check the path.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, DeepMatchingError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise DeepMatchingError(
            f"The {name} '{path}' cannot be read ({reason}); check the path and its permissions."
        ) from error
    if not data:
        raise DeepMatchingError(f"The {name} '{path}' is an empty file; copy or download it again.")
    return data


def _is_complete(data: bytes) -> bool:
    """Whether a PNG or JPEG file reaches its end marker; other formats are left to the decoder."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png_is_complete(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_is_complete(data)
    return True


def _png_is_complete(data: bytes) -> bool:
    """Walk the chunks (length, type, body, CRC) up to IEND; the CRC of every critical chunk must hold."""
    position = 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        end = position + 8 + length
        if end + 4 > len(data):
            return False
        is_critical = not kind[0] & 0x20  # an upper-case first letter
        if is_critical and zlib.crc32(data[position + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if kind == b"IEND":
            return True
        position = end + 4
    return False


# Within a scan, FF 00 is a data byte, FF D0 to FF D7 are restarts and FF FF is fill.
_JPEG_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def _jpeg_is_complete(data: bytes) -> bool:
    """Walk the segments up to the end-of-image marker.

    Searching for the marker alone would not do: an EXIF thumbnail is a JPEG and has its own.
    """
    position = 2
    while position + 2 <= len(data):
        marker = data[position + 1]
        if data[position] != 0xFF:
            return False
        if marker == 0xFF:  # fill
            position += 1
        elif marker == 0xD9:  # end of image
            return True
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # no length follows
            position += 2
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
            if marker == 0xDA:  # a scan: its header, just skipped, then data until the next marker
                found = _JPEG_END_OF_SCAN.search(data, position)
                if found is None:
                    return False
                position = found.start()
    return False


_quiet_lock = threading.Lock()
_quiet_depth = 0
_quiet_restore = 0


@contextlib.contextmanager
def _quiet_opencv() -> Iterator[None]:
    """Keep OpenCV from writing its own messages about a file we report on ourselves.

    The log level is one for the whole process: the last thread to leave restores it.
    """
    global _quiet_depth, _quiet_restore
    # OpenCV 4 has the functions in cv2, OpenCV 5 in cv2.utils.logging.
    module = getattr(getattr(cv2, "utils", None), "logging", cv2)
    get_level, set_level = getattr(module, "getLogLevel", None), getattr(module, "setLogLevel", None)
    if get_level is None or set_level is None:
        yield
        return
    with _quiet_lock:
        if _quiet_depth == 0:
            _quiet_restore = get_level()
            set_level(0)
        _quiet_depth += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                set_level(_quiet_restore)


def _array_from_pil(image: PILImage, name: str) -> np.ndarray:
    """A PIL image as (H,W) or RGB (H,W,3); alpha is dropped."""
    width, height = image.size
    if width * height == 0:
        raise DeepMatchingError(f"The {name} has no pixels (size {width} x {height}).")
    try:
        if image.mode in ("L", "LA", "La", "1"):
            return np.asarray(image.convert("L"))
        if image.mode == "F" or image.mode.startswith("I;16"):
            return np.asarray(image)
        if image.mode == "I":  # 32 bits, in which some PIL versions open 16-bit files
            array = np.asarray(image)
            if array.min() < 0 or array.max() > 65535:
                raise DeepMatchingError(f"The {name} (PIL mode I) exceeds 16 bits; {_DTYPE_RULE}.")
            return array.astype(np.uint16)
        return np.asarray(image.convert("RGB"))
    except OSError as error:  # PIL reads the file only now
        raise DeepMatchingError(f"The {name} cannot be read by PIL ({error}); check its file.") from error


def _planar_from_array(array: np.ndarray, name: str) -> torch.Tensor:
    """(H,W), (H,W,1), (H,W,3) or (H,W,4) of any allowed dtype to a tensor (1 or 3,H,W) of the same dtype."""
    if array.dtype.name not in _ARRAY_DTYPES:
        raise DeepMatchingError(f"The {name} has dtype {array.dtype}; {_DTYPE_RULE}.")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = " (for channels first, transpose it or pass a torch tensor)"
        raise DeepMatchingError(
            f"The {name} is an array of shape {tuple(array.shape)}; "
            f"it must be (H,W), (H,W,1), (H,W,3) or (H,W,4){hint}."
        )
    colours = array[:, :, :3] if array.shape[2] == 4 else array
    # A copy in native byte order: the result must neither alias the caller's memory nor inherit its strides.
    planar = np.array(colours.transpose(2, 0, 1), dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(planar)


def _planar_from_tensor(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """(H,W), (C,H,W) or (1,C,H,W) to (1 or 3,H,W); C = 4 loses its alpha."""
    shape = tuple(tensor.shape)
    if tensor.ndim == 2:
        tensor = tensor[None]
    elif tensor.ndim == 4 and shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4):
        hint = ""
        if tensor.ndim == 3 and shape[-1] in (1, 3, 4):
            hint = " (for channels last, call .permute(2, 0, 1))"
        elif tensor.ndim == 4:
            hint = " (one image at a time)"
        raise DeepMatchingError(
            f"The {name} is a tensor of shape {shape}; it must be (H,W), (C,H,W) or (1,C,H,W) with C = 1, 3 or 4{hint}."
        )
    return tensor[:3] if tensor.shape[0] == 4 else tensor


def _scale_to_unit(planar: torch.Tensor, name: str) -> torch.Tensor:
    """(C,H,W) of any dtype to float32 in [0,1]; refuses values that cannot be an image."""
    white = _WHITE.get(planar.dtype)
    if white is None:
        raise DeepMatchingError(f"The {name} has dtype {planar.dtype}; {_DTYPE_RULE}.")
    if planar.numel() == 0:
        raise DeepMatchingError(
            f"The {name} has no pixels (height {planar.shape[1]}, width {planar.shape[2]}); pass a picture."
        )
    if not planar.is_floating_point():
        return planar.to(torch.float32) / white
    planar = planar.to(torch.float32)
    low, high = (bound.item() for bound in torch.aminmax(planar.detach()))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DeepMatchingError(f"The {name} contains NaN or infinite values; replace them first.")
    if low < _FLOAT_RANGE[0] or high > _FLOAT_RANGE[1]:
        raise DeepMatchingError(
            f"The {name} has floating-point values from {low:g} to {high:g}, but they must be in [0, 1]: "
            "divide by 255 or pass uint8."
        )
    return planar
