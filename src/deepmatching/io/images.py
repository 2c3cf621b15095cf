"""Images of every kind: :func:`load_image` makes them float tensors (C,H,W) in [0,1]."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.arrays import unmasked
from deepmatching.io.files import PathLike
from deepmatching.io.image_files import AS_STORED, decode_image_file

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

_log = logging.getLogger("deepmatching")

ImageLike: TypeAlias = "str | os.PathLike[str] | np.ndarray | torch.Tensor | PILImage"
#: Two images, or two images and their masks, each of which may be None.
PairLike: TypeAlias = "Sequence[Any]"

#: The value of white by the name of the dtype. Images of other dtypes are refused.
WHITE = {"bool": 1.0, "uint8": 255.0, "uint16": 65535.0, "float16": 1.0, "float32": 1.0, "float64": 1.0}
_DTYPE_RULE = "convert it to uint8 (0 to 255), uint16 (0 to 65535), bool or float (0 to 1)"
# Resampling overshoots slightly, while an image in 0 … 255 exceeds these bounds unless it is nearly black.
_FLOAT_RANGE = (-0.5, 1.5)
_SMALLER_DEPTHS = (8, 10, 12, 14)  #: numbers of bits that 16-bit images often hold instead
_warned_depths: set[int] = set()

#: The attribute of a tensor that :func:`load_image` has made: its version, which PyTorch counts up when it is changed.
_LOADED = "_deepmatching_loaded_version"


def load_image(image: ImageLike, name: str = "image", bit_depth: int | None = None) -> torch.Tensor:
    """Return the image as float32 (C,H,W), C = 1 (grey) or 3 (RGB), values in [0,1].

    * A path: any format that OpenCV decodes, 8 or 16 bits; EXIF orientation is applied and alpha is dropped.
    * A NumPy array: (H,W), (H,W,1), RGB (H,W,3) or RGBA (H,W,4).
    * A torch tensor: (H,W), (C,H,W) or (1,C,H,W) with C = 1, 3 or 4. It stays on its device, and a float
      tensor stays part of the autograd graph. A tensor that this function has returned is returned at once.
    * A PIL image of any mode; its EXIF orientation is not applied, because PIL does not apply it either.

    uint8 is divided by 255 and uint16 by 65535; bool is 0 or 1; float must be in [0,1] already, but a small
    overshoot is accepted and kept. Error messages call the image `name`.

    Cameras store 12 bits, say, in 16-bit files. `bit_depth` says so: uint16 is then divided by 4095. It is never
    guessed, because a dark picture of 16 bits looks the same, and both images of a pair must be scaled alike. Values
    that all fit a smaller depth get a warning, once.
    """
    if isinstance(image, torch.Tensor):
        if is_loaded(image):
            return image
        planar = _planar_from_tensor(image, name)
    elif isinstance(image, np.ndarray):
        planar = _planar_from_array(image, name)
    elif isinstance(image, str | os.PathLike):
        planar, name = read_pixels(image, name), f"{name} ('{os.fspath(image)}')"
    else:
        planar = planar_from_pil(image, name)
    return mark_loaded(scale_to_unit(planar, name, bit_depth))


def mark_loaded(image: torch.Tensor) -> torch.Tensor:
    """Mark an image as one that :func:`load_image` returns at once, and return it."""
    if not image.is_inference():  # such tensors have no version
        setattr(image, _LOADED, image._version)
    return image


def is_loaded(image: torch.Tensor) -> bool:
    """Return whether :func:`load_image` returns a tensor at once."""
    return not image.is_inference() and getattr(image, _LOADED, None) == image._version


def has_mask(image: torch.Tensor) -> bool:
    """Return whether the last channel of images (…,C,H,W) is a mask; see ``deepmatching.io.masks``."""
    return image.shape[-3] % 2 == 0


def colours_of(image: torch.Tensor) -> torch.Tensor:
    """Return images (…,C,H,W) without their mask."""
    return image[..., :-1, :, :] if has_mask(image) else image


def read_pixels(path: PathLike, name: str = "image", data: bytes | None = None) -> torch.Tensor:
    """Read a file, or its content, as (C,H,W) of its own dtype; :func:`scale_to_unit` makes it an image."""
    array = decode_image_file(path, AS_STORED, name, data)
    if array.ndim == 3 and array.shape[2] == 3:
        array = array[:, :, ::-1]  # OpenCV decodes to BGR
    return _planar_from_array(array, f"{name} ('{os.fspath(path)}')")


def planar_from_pil(image: PILImage, name: str) -> torch.Tensor:
    """Turn a PIL image into a tensor (1 or 3,H,W), without alpha; raise if it is none."""
    from PIL import Image

    if not isinstance(image, Image.Image):
        kind = type(image).__name__
        raise DeepMatchingError(f"The {name} is a {kind}; pass a path, a NumPy array, a torch tensor or a PIL image.")
    try:
        if image.mode in ("La", "RGBa"):  # with colours multiplied by alpha
            image = image.convert(image.mode.upper())
        if image.mode in ("L", "LA", "1"):
            array = np.asarray(image.convert("L"))
        elif image.mode in ("F", "I") or image.mode.startswith("I;16"):
            array = np.asarray(image)
        else:
            array = np.asarray(image.convert("RGB"))
    except (OSError, ValueError) as error:  # PIL opens files lazily
        raise DeepMatchingError(f"The {name} cannot be read by PIL ({error}); check its file.") from error
    if image.mode == "I" and array.size:  # 32 bits; some PIL versions open 16-bit files in this mode
        if array.min() < 0 or array.max() > 65535:
            raise DeepMatchingError(f"The {name} (PIL mode I) exceeds 16 bits; {_DTYPE_RULE}.")
        array = array.astype(np.uint16)
    return _planar_from_array(array, name)


def shrunk_size(size: tuple[int, int], max_size: int | None) -> tuple[int, int]:
    """Return the size (H, W) of an image whose longer side is reduced to at most `max_size` px; None for no limit."""
    if max_size is None or max(size) <= max_size:
        return size
    height, width = (max(1, round(side * max_size / max(size))) for side in size)
    return height, width


def shrink(image: torch.Tensor, max_size: int | None) -> torch.Tensor:
    """Shrink an image (C,H,W) to its :func:`shrunk_size`; each pixel is the mean of those that it covers."""
    size = size_of(image)
    height, width = shrunk_size(size, max_size)
    if (height, width) == size:
        return image
    pixels = image.detach().cpu().numpy().transpose(1, 2, 0)
    smaller = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=cv2.INTER_AREA)
    planar = smaller.reshape(height, width, -1).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planar)).to(image.device)


def size_of(image: torch.Tensor) -> tuple[int, int]:
    """Return the rows and columns of an image (C,H,W)."""
    return image.shape[1], image.shape[2]


def check_matched_size(image: Tensor, size: tuple[int, int] | None) -> None:
    """Raise if matches are of an image of another size (rows, columns) than this one; None if theirs is unknown."""
    if size is not None and size != (found := size_of(image)):
        sizes = f"{size[1]}x{size[0]} pixels, but this one has {found[1]}x{found[0]}"
        raise DeepMatchingError(f"The matches are of an image of {sizes}: give the image that was matched.")


def stacked(images: list[torch.Tensor]) -> torch.Tensor:
    """Stack images (C,H,W) to a batch (B,C,H,W); one image is not copied."""
    return images[0][None] if len(images) == 1 else torch.stack(images)


def _planar_from_array(array: np.ndarray, name: str) -> torch.Tensor:
    """Turn (H,W), (H,W,1), (H,W,3) or (H,W,4) of any allowed dtype into a tensor (1 or 3,H,W) of the same dtype."""
    array = unmasked(array, name)
    if array.dtype.name not in WHITE:
        raise DeepMatchingError(f"The {name} has dtype {array.dtype}; {_DTYPE_RULE}.")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        is_planar = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = " (for channels first, transpose it or pass a torch tensor)" if is_planar else ""
        form = f"(H,W), (H,W,1), (H,W,3) or (H,W,4){hint}"
        raise DeepMatchingError(f"The {name} is an array of shape {array.shape}; it must be {form}.")
    colours = array[:, :, :3] if array.shape[2] == 4 else array
    # A copy in native byte order: the result must neither alias the caller's memory nor inherit its strides.
    planar = np.array(colours.transpose(2, 0, 1), dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(planar)


def check_dense(tensor: torch.Tensor, name: str) -> None:
    """Raise if a tensor is sparse or nested, or has no values."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        raise DeepMatchingError(f"The {name} is a sparse, nested or meta tensor, or quantized; pass a dense one.")


def _planar_from_tensor(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Turn (H,W), (C,H,W) or (1,C,H,W) into (1 or 3,H,W); C = 4 loses its alpha."""
    check_dense(tensor, name)
    shape = tuple(tensor.shape)
    if tensor.ndim == 2:
        tensor = tensor[None]
    elif tensor.ndim == 4 and shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4):
        hint = " (for channels last, call .permute(2, 0, 1))" if tensor.ndim == 3 and shape[-1] in (1, 3, 4) else ""
        hint = " (one image at a time)" if tensor.ndim == 4 else hint
        form = f"(H,W), (C,H,W) or (1,C,H,W) with C = 1, 3 or 4{hint}"
        raise DeepMatchingError(f"The {name} is a tensor of shape {shape}; it must be {form}.")
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()  # NumPy has no such dtype, so WHITE has none either
    return tensor[:3] if tensor.shape[0] == 4 else tensor


def scale_to_unit(planar: torch.Tensor, name: str = "image", bit_depth: int | None = None) -> torch.Tensor:
    """Scale (C,H,W) of any dtype to float32 in [0,1], the same on every device; raise for impossible values."""
    white = WHITE.get(str(planar.dtype).removeprefix("torch."))
    if white is None:
        raise DeepMatchingError(f"The {name} has dtype {planar.dtype}; {_DTYPE_RULE}.")
    if planar.numel() == 0:
        raise DeepMatchingError(f"The {name} has no pixels (its size is {size_of(planar)}); pass a picture.")
    if planar.dtype == torch.uint16:
        white = _white_of_16_bits(int(planar.to(torch.int32).max()), name, bit_depth)
    if not planar.is_floating_point() and planar.device.type == "cpu":
        # NumPy, which starts no threads: bulk matching reads many images at once.
        return torch.from_numpy(np.true_divide(planar.numpy(), np.float32(white), dtype=np.float32))
    if not planar.is_floating_point():  # a GPU would multiply with the rounded inverse of a number
        return planar.to(torch.float32) / torch.full((), white, device=planar.device)
    planar = planar.to(torch.float32)
    low, high = (bound.item() for bound in torch.aminmax(planar.detach()))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DeepMatchingError(f"The {name} contains NaN or infinite values; replace them first.")
    if low < _FLOAT_RANGE[0] or high > _FLOAT_RANGE[1]:
        reason = f"has floating-point values from {low:g} to {high:g}, but they must be in [0, 1]"
        raise DeepMatchingError(f"The {name} {reason}; divide by 255 or pass uint8.")
    return planar


def _white_of_16_bits(largest: int, name: str, bit_depth: int | None) -> float:
    """Return the value of white in a uint16 image with this largest value."""
    depth = 16 if bit_depth is None else bit_depth
    if largest >= 2**depth:
        raise DeepMatchingError(f"The {name} has values up to {largest}, more than {depth} bits hold; give more bits.")
    bits = next((bits for bits in _SMALLER_DEPTHS if largest < 2**bits), 16)
    if bit_depth is None and largest > 0 and bits < 16 and bits not in _warned_depths:
        _warned_depths.add(bits)  # once, not for every frame of a video
        _log.warning(
            f"The {name} has 16 bits a pixel, but all its values are below {2**bits}: if it holds {bits}-bit data, "
            f"say so with --bit-depth {bits} (bit_depth={bits} in Python), or it is nearly black."
        )
    return float(2**depth - 1)


OnError: TypeAlias = Callable[[int, DeepMatchingError], object]  #: gets the number of a pair and what is wrong with it


def batches_of_equal_sizes(
    pairs: Iterable[PairLike],
    load: Callable[[PairLike], tuple[Tensor, Tensor]],
    batch_size: int,
    on_error: OnError | None,
) -> Iterator[list[tuple[Tensor, Tensor]] | None]:
    """Yield consecutive pairs of equal sizes, at most ``batch_size`` at a time, and None for each unreadable pair.

    Pairs of images may come with masks; ``load`` reads all of a pair. Without ``on_error``, an unreadable pair raises
    its error. The good pairs before any error come first.
    """
    batch: list[tuple[Tensor, Tensor]] = []
    try:
        for number, pair in enumerate(pairs):
            try:
                if not hasattr(pair, "__len__") or len(pair) not in (2, 4):
                    raise DeepMatchingError(
                        f"A pair must be two images, or these and two masks, not {short_repr(pair)}."
                    )
                image0, image1 = load(pair)
            except DeepMatchingError as error:
                if on_error is None:
                    raise
                yield from [batch] if batch else []
                batch = []
                on_error(number, error)
                yield None
                continue
            if batch and (len(batch) >= batch_size or [i.shape for i in batch[0]] != [image0.shape, image1.shape]):
                yield batch
                batch = []
            batch.append((image0, image1))
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
