"""Image files: their pixels, as stored or turned upright, and the orientation that tells one from the other.

Pillow decodes JPEG, finds out whether a file is cut short, and reads sizes and EXIF. OpenCV decodes the other formats:
Pillow loses half the bits of 16-bit colour, and knows neither EXR nor all kinds of TIFF.
"""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import shown
from deepmatching.io.arrays import LARGEST_COMPRESSION
from deepmatching.io.files import PathLike, read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

#: Suffixes of pictures, as they are listed in folders.
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".webp")
#: Flags of OpenCV: grey or BGR, 8 or 16 bits, as in the file; EXIF orientation is applied.
AS_STORED = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH
MAX_PIXELS = 2**29  #: pixels of an image; larger ones are refused before they are decoded
UPRIGHT = 1  #: the EXIF orientation of an image that is stored upright
_EXIF_ORIENTATION = 0x0112
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
#: Chunks that a PNG can do without but that change the picture: transparency, orientation, frames of an animation.
_PNG_KEPT = (b"tRNS", b"eXIf", b"acTL", b"fcTL", b"fdAT")


def decode_image_file(path: PathLike, flags: int, name: str = "image", data: bytes | None = None) -> np.ndarray:
    """Decode an image file to (H,W) or (H,W,C), channels in BGR order, as `cv2.imdecode` does with these `flags`.

    Not by `cv2.imread`, which prints, and cannot open paths with non-ASCII characters on Windows. With
    ``data``, the content of the file, it is not read.
    """
    data = read_bytes(path, name) if data is None else data
    try:
        data = _essential(data)
        header = _open(data)
        pixels = 0 if header is None else header.width * header.height
        if header is not None and pixels > MAX_PIXELS:
            size = f"{header.width} x {header.height}"
            raise DeepMatchingError(f"The {name} '{shown(path)}' has {size} pixels, more than 2^29; reduce or cut it.")
        # Bounded by their compression, at the best to a bit for each pixel.
        if data.startswith((_JPEG, _PNG)) and pixels > 8 * LARGEST_COMPRESSION * len(data):
            raise ValueError("more pixels than the file can hold")
        if header is not None and header.format == "JPEG":
            return _decode_jpeg(header, flags)
        with quiet_opencv():
            array = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        assert array is not None
        return np.asarray(array)
    except (DeepMatchingError, MemoryError):
        raise
    except Exception as error:  # cv2.error, and what Pillow raises: OSError, SyntaxError, ValueError, struct.error, …
        reason = "not an image, an unknown format, damaged or cut short"
        advice = "check the file or convert it to PNG or JPEG"
        raise DeepMatchingError(f"The {name} '{shown(path)}' cannot be decoded ({reason}); {advice}.") from error


def read_alpha(path: PathLike, name: str = "image", data: bytes | None = None) -> np.ndarray | None:
    """Return the alpha of an image file, upright, uint8 (H,W); None if it has none, or if Pillow does not know it."""
    try:
        header = _open(_essential(read_bytes(path, name) if data is None else data))
        alpha = None if header is None else alpha_of_pil(header)
        # Pillow turns TIFF itself when it reads the pixels, and forgets the orientation then.
        return None if header is None or alpha is None else to_upright(alpha, _orientation(header))
    except (DeepMatchingError, MemoryError):
        raise
    except Exception as error:  # as above
        raise DeepMatchingError(
            f"The alpha of the {name} '{shown(path)}' cannot be decoded; check the file."
        ) from error


def alpha_of_pil(image: Image) -> np.ndarray | None:
    """Return the alpha of a PIL image of any mode, uint8 (H,W); None if it has none."""
    if not image.has_transparency_data:
        return None
    straight = image.convert("LA") if image.mode == "La" else image  # with grey multiplied by alpha
    return np.asarray(straight.convert("RGBA").getchannel("A"))


def read_orientation(path: PathLike, data: bytes | None = None) -> int:
    """Return the EXIF orientation, 1 to 8, of a JPEG, PNG, WebP or TIFF file; 1 (upright) if it has none."""
    try:
        header = _open(_essential(read_bytes(path, "image") if data is None else data))
        return UPRIGHT if header is None else _orientation(header)
    except Exception:  # as above
        return UPRIGHT


def to_stored(points: np.ndarray, size: tuple[int, int], orientation: int) -> np.ndarray:
    """Convert positions (N, 2) in the upright image of ``size`` (rows, columns) to those in the stored pixels.

    ``load_image`` turns photographs upright; COLMAP and hloc work on the stored pixels. Both positions are measured
    from pixel centres.
    """
    mirrored = np.where(_is_mirrored(orientation), (size[1] - 1, size[0] - 1) - points, points).astype(points.dtype)
    return mirrored[:, ::-1] if orientation >= 5 else mirrored


def to_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored pixels (H,W) upright; see :func:`to_stored`."""
    across, down = _is_mirrored(orientation)
    turned = pixels.T if orientation >= 5 else pixels
    return turned[:: -1 if down else 1, :: -1 if across else 1]


def _is_mirrored(orientation: int) -> tuple[bool, bool]:
    """Return whether x and y of the upright image are mirrored; from 5 on, the stored axes are swapped after that."""
    return orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)


def stored_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return the size (rows, columns) of the stored pixels, from that of the upright image."""
    return (size[1], size[0]) if orientation >= 5 else size


def _open(data: bytes) -> ImageFile | None:
    """Read what stands before the pixels; None for what Pillow does not know, which OpenCV may.

    Not by ``Image.open``, whose limit of pixels belongs to the whole process and prints a warning.
    """
    from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin, PpmImagePlugin, TiffImagePlugin, WebPImagePlugin

    readers: dict[bytes, Callable[..., ImageFile]] = {
        _JPEG: JpegImagePlugin.JpegImageFile,
        _PNG: PngImagePlugin.PngImageFile,
        b"RIFF": WebPImagePlugin.WebPImageFile,
        b"II": TiffImagePlugin.TiffImageFile,
        b"MM": TiffImagePlugin.TiffImageFile,
        b"BM": BmpImagePlugin.BmpImageFile,
        b"P": PpmImagePlugin.PpmImageFile,
    }
    reader = next((readers[start] for start in readers if data.startswith(start)), None)
    try:
        return None if reader is None else reader(io.BytesIO(data), "")
    except Exception:  # as above
        if data.startswith((_JPEG, _PNG)):
            raise
        return None


def _orientation(header: ImageFile) -> int:
    """Return the orientation in EXIF. Pillow's ``getexif`` would also take one in XMP, which OpenCV does not know."""
    from PIL import Image

    exif = getattr(header, "tag_v2", None)  # of TIFF
    if exif is None:
        exif = Image.Exif()
        with contextlib.suppress(Exception):  # the picture may be in order even so
            exif.load(header.info.get("exif", b""))
    found: Any = exif.get(_EXIF_ORIENTATION)
    return int(found) if found in range(1, 9) else UPRIGHT


def _decode_jpeg(header: ImageFile, flags: int) -> np.ndarray:
    """Decode the pixels of a JPEG; raise if it is cut short. From OpenCV, libjpeg would print to standard error."""
    image: Image = header
    if not flags & (cv2.IMREAD_COLOR | cv2.IMREAD_ANYCOLOR):
        header.draft("L", header.size)  # the luminance as it is stored
        image = header.convert("L")
    pixels = np.asarray(image)
    if flags != cv2.IMREAD_UNCHANGED and (orientation := _orientation(header)) != UPRIGHT:
        turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
        x, y = _is_mirrored(orientation)
        pixels = turned[:: -1 if y else 1, :: -1 if x else 1]
    if image.mode == "CMYK":  # OpenCV's formula; Pillow has inverted the inks
        black = np.uint16(255) - pixels[:, :, 3:]
        pixels = (black - (pixels[:, :, :3] * black >> 8)).astype(np.uint8)
    return pixels if pixels.ndim == 2 else pixels[:, :, ::-1]


def _essential(data: bytes) -> bytes:
    """Leave out what does not change the picture from a PNG; other formats are returned as they are.

    libpng prints warnings about such chunks (length, type, body, CRC), and Pillow refuses a file if the CRC of one is
    wrong. Raises ValueError if the file is damaged or cut short, which OpenCV does not always notice.
    """
    if not data.startswith(_PNG):
        return data
    kept, kind, position = [_PNG], b"", len(_PNG)
    while position + 12 <= len(data) and kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        is_right = data[end - 4 : end] == struct.pack(">I", zlib.crc32(data[position + 4 : end - 4]))
        is_critical = not kind[0] & 0x20  # an upper-case first letter
        if is_critical and not is_right:
            raise ValueError("damaged")
        if is_right and (is_critical or kind in _PNG_KEPT):
            place = 2 if kind == b"eXIf" else len(kept)  # after the header, though it may come after the pixels
            kept.insert(place, data[position:end])
        position = end
    if not {b"IDAT", b"IEND"} <= {chunk[4:8] for chunk in kept}:
        raise ValueError("cut short")
    return b"".join(kept)


_quiet_lock = threading.Lock()
_levels_before: list[int] = []  #: One for each thread inside :func:`quiet_opencv`; the first is that of the program.


@contextlib.contextmanager
def quiet_opencv() -> Iterator[None]:
    """Silence OpenCV about a file. The process has one log level: the last thread to leave restores it."""
    # OpenCV 4 has the functions in cv2, OpenCV 5 in cv2.utils.logging.
    logging: Any = getattr(getattr(cv2, "utils", None), "logging", cv2)
    if not hasattr(logging, "getLogLevel"):
        yield
        return
    with _quiet_lock:
        _levels_before.append(logging.getLogLevel())
        logging.setLogLevel(0)
    try:
        yield
    finally:
        with _quiet_lock:
            logging.setLogLevel(_levels_before.pop())
