"""Every kind of input of `load_image`, and every error."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from deepmatching.errors import DeepMatchingError
from deepmatching.io import image_files, images
from deepmatching.io.image_files import quiet_opencv
from deepmatching.io.images import load_image, shrink
from helpers.synthetic_pictures import draw_photo

RGB = draw_photo(0, 30, 40)
GREY = np.ascontiguousarray(RGB[:, :, 0])
RGBA = np.dstack([RGB, draw_photo(1, 30, 40)[:, :, 0]])


def chw(array: np.ndarray, white: float = 255.0) -> np.ndarray:
    """Return the expected tensor of an (H,W) or (H,W,C) array."""
    array = array[:, :, None] if array.ndim == 2 else array
    return array.transpose(2, 0, 1).astype(np.float32) / np.float32(white)


def encode_pil(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def encode_cv(suffix: str, rgb: np.ndarray) -> bytes:
    pixels = rgb if rgb.ndim == 2 else np.ascontiguousarray(rgb[:, :, [2, 1, 0, 3][: rgb.shape[2]]])
    return cv2.imencode(suffix, pixels)[1].tobytes()


def load_bytes(tmp_path: Path, data: bytes, file_name: str = "picture") -> torch.Tensor:
    path = tmp_path / file_name
    path.write_bytes(data)
    return load_image(path)


RGB16, RGBA16, GREY16 = (pixels.astype(np.uint16) * 251 for pixels in (RGB, RGBA, GREY))

LOSSLESS = {
    "rgb": (encode_cv(".png", RGB), chw(RGB)),
    "grey": (encode_cv(".png", GREY), chw(GREY)),
    "rgba": (encode_cv(".png", RGBA), chw(RGB)),
    "rgba, PIL": (encode_pil(Image.fromarray(RGBA), "PNG"), chw(RGB)),
    "16-bit rgb": (encode_cv(".png", RGB16), chw(RGB16, 65535)),
    "16-bit rgba": (encode_cv(".png", RGBA16), chw(RGB16, 65535)),
    "16-bit grey": (encode_cv(".png", GREY16), chw(GREY16, 65535)),
    **{kind: (encode_cv(f".{kind}", RGB), chw(RGB)) for kind in ("bmp", "ppm", "tiff")},
    "webp": (encode_pil(Image.fromarray(RGB), "WEBP", lossless=True), chw(RGB)),
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_files_are_exact(tmp_path: Path, kind: str) -> None:
    data, expected = LOSSLESS[kind]
    image = load_bytes(tmp_path, data, "größe 画像")
    assert image.dtype == torch.float32
    assert image.is_contiguous() and torch.equal(image, load_image(str(tmp_path / "größe 画像")))
    np.testing.assert_array_equal(image.numpy(), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_have_the_pixels_that_opencv_finds(tmp_path: Path, mode: str) -> None:
    data = encode_pil(Image.fromarray(RGB).convert(mode), "JPEG", progressive=mode == "RGB")
    expected = cv2.imdecode(np.frombuffer(data, np.uint8), image_files.AS_STORED)
    expected = expected if mode == "L" else expected[:, :, ::-1]
    np.testing.assert_array_equal(load_bytes(tmp_path, data).numpy(), chw(expected))


def test_jpeg_trailing_data_and_thumbnails_do_not_count_as_truncation(tmp_path: Path) -> None:
    thumbnail, body = (encode_pil(Image.fromarray(pixels), "JPEG") for pixels in (RGB[:8, :8], RGB))
    segment = b"Exif\0\0" + thumbnail
    whole = body[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + body[2:]
    assert load_bytes(tmp_path, whole + b"\xff\xda appended").shape == (3, 30, 40)
    # The end marker of the thumbnail must not count as that of the image.
    with pytest.raises(DeepMatchingError, match="cut short"):
        load_bytes(tmp_path, whole[:-40])


TRUNCATED = {
    **{kind: LOSSLESS[kind][0] for kind in ("rgb", "ppm", "tiff", "webp", "bmp")},
    **{kind: encode_pil(Image.fromarray(RGB), kind) for kind in ("JPEG", "TIFF", "WEBP")},
    "progressive JPEG": encode_pil(Image.fromarray(RGB), "JPEG", progressive=True),
}


@pytest.mark.parametrize("kind", TRUNCATED)
def test_every_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    data = TRUNCATED[kind]
    load_bytes(tmp_path, data)
    lengths = {*range(1, 64), *np.linspace(64, len(data) - 1, 40).astype(int).tolist(), len(data) - 2}
    for length in sorted(lengths):
        with pytest.raises(DeepMatchingError, match="cut short"):
            load_bytes(tmp_path, data[:length])


def test_the_log_level_of_opencv_is_restored_by_the_last_who_changes_it() -> None:
    module = getattr(cv2.utils, "logging", cv2)
    before = module.getLogLevel()
    first, second = quiet_opencv(), quiet_opencv()
    for block in (first, second):
        block.__enter__()
    for block, level in ((first, 0), (second, before)):
        block.__exit__(None, None, None)
        assert module.getLogLevel() == level


def test_files_that_are_no_images_and_bad_paths_are_refused_by_name(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"\0" * 1000, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(DeepMatchingError, match=r"'.*picture'"):
            load_bytes(tmp_path, data)
    for path in (tmp_path / "missing.png", tmp_path, "nul\0byte.png"):
        with pytest.raises(DeepMatchingError, match="first image '"):
            load_image(path, "first image")


@pytest.mark.parametrize("suffix", [".ppm", ".bmp", ".tiff", ".jpg", ".png", ".webp"])
def test_too_many_pixels_are_refused_undecoded(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(encode_cv(suffix, RGB))
    monkeypatch.setattr(image_files, "MAX_PIXELS", RGB[..., 0].size - 1)
    monkeypatch.setattr(cv2, "imdecode", None)
    with pytest.raises(DeepMatchingError, match="40 x 30"):
        load_image(tmp_path / "a")


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DeepMatchingError, match="Permission denied"):
        load_image(tmp_path / "a.png")


def test_a_float_file_beyond_one_is_refused(tmp_path: Path) -> None:
    unit = GREY.astype(np.float32) / 255
    np.testing.assert_array_equal(load_bytes(tmp_path, encode_cv(".tiff", unit)).numpy(), unit[None])
    with pytest.raises(DeepMatchingError, match=r"'.*picture'\).*divide by 255"):
        load_bytes(tmp_path, encode_cv(".tiff", GREY.astype(np.float32)))


def test_shapes_of_arrays_and_tensors() -> None:
    for array in (GREY, GREY[:, :, None], RGB, RGBA):
        np.testing.assert_array_equal(load_image(array).numpy(), chw(array[:, :, :3] if array.ndim == 3 else array))
    for shape in ((30, 40), (1, 30, 40), (3, 30, 40), (4, 30, 40), (1, 3, 30, 40)):
        tensor = torch.rand(shape)
        assert torch.equal(load_image(tensor), tensor.reshape(-1, 30, 40)[:3])


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (np.uint8, 51, 0.2),
        *((dtype, 13107, 0.2) for dtype in (np.uint16, ">u2")),
        (np.bool_, True, 1.0),
        *((np.float32, value, value) for value in (-0.1, 1.1)),  # a small overshoot is accepted
        *((dtype, 0.25, 0.25) for dtype in (np.float16, np.float32, ">f8")),
    ],
)
def test_dtypes_of_arrays_and_tensors(dtype: object, value: float, expected: float) -> None:
    array = np.full((2, 3, 3), value, dtype)
    for image in (array, torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).permute(2, 0, 1)):
        loaded = load_image(image)
        assert loaded.dtype == torch.float32
        assert loaded.shape == (3, 2, 3)
        torch.testing.assert_close(loaded, torch.full((3, 2, 3), expected))


def test_an_array_with_any_strides_is_copied() -> None:
    array = np.random.default_rng(0).random((5, 7), np.float32)
    loaded = load_image(array)
    loaded.zero_()
    assert array.any()
    np.testing.assert_array_equal(load_image(RGB[::-1, ::2]).numpy(), chw(RGB[::-1, ::2]))
    frozen = RGB.copy()
    frozen.setflags(write=False)
    np.testing.assert_array_equal(load_image(frozen).numpy(), chw(RGB))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_tensor_stays_in_the_graph(dtype: torch.dtype) -> None:
    tensor = torch.rand(1, 4, 5, 6, dtype=dtype, requires_grad=True)
    load_image(tensor).sum().backward()
    assert tensor.grad is not None
    expected = torch.ones_like(tensor)
    expected[:, 3] = 0  # alpha
    assert torch.equal(tensor.grad, expected)


def test_a_loaded_image_is_checked_again_only_if_it_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_image(RGB)
    with monkeypatch.context() as patch:
        patch.setattr(images, "scale_to_unit", None)
        assert load_image(loaded) is loaded
    loaded *= 255
    with pytest.raises(DeepMatchingError, match="255"):
        load_image(loaded)
    with torch.inference_mode():
        assert torch.equal(load_image(load_image(RGB)), load_image(RGB))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        *((np.zeros((4, 4), dtype), f"dtype {dtype}") for dtype in ("int64", "complex", "object")),
        (torch.zeros(4, 4, dtype=torch.int32), r"dtype torch\.int32"),
        (np.zeros((4, 4, 2)), r"\(4, 4, 2\)"),
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((3, 8, 9)), "channels first"),
        (torch.zeros(8, 9, 3), "channels last"),
        (torch.zeros(2, 3, 8, 9), "one image at a time"),
        *((empty, "no pixels") for empty in (np.zeros((0, 5, 3), np.uint8), np.zeros((5, 0)), torch.zeros(3, 0, 4))),
        *((bad, "NaN or infinite") for bad in (np.full((3, 3), np.nan), torch.tensor([[0.0, float("inf")]]))),
        *((wide, "divide by 255 or pass uint8") for wide in (np.full((3, 3), 200.0), torch.full((3, 3), -1.0))),
        *((other, f"is a {type(other).__name__}") for other in ([[1, 2]], None, 3)),
    ],
)
def test_anything_but_an_image_is_refused_in_one_sentence(image: object, message: str) -> None:
    with pytest.raises(DeepMatchingError, match=message) as caught:
        load_image(image, "second image")  # type: ignore[arg-type]
    assert "second image" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "1", "CMYK", "YCbCr", "HSV"])
def test_pil_modes_equal_pils_own_conversion(tmp_path: Path, mode: str) -> None:
    """Alpha is dropped, not blended, in a file as well."""
    image = Image.fromarray(RGBA).convert("RGBA" if mode == "RGBA" else "RGB").convert(mode)
    loaded = [load_image(image)]
    if mode in ("P", "LA", "1"):
        loaded.append(load_bytes(tmp_path, encode_pil(image, "PNG")))
    assert loaded[0].shape[0] == (1 if mode in ("L", "LA", "1") else 3)
    for found in loaded:
        np.testing.assert_array_equal(found.expand(3, -1, -1).numpy(), chw(np.asarray(image.convert("RGB"))))


def test_pil_deep_modes() -> None:
    for image in (GREY16, GREY16.astype(np.int32)):
        np.testing.assert_array_equal(load_image(Image.fromarray(image)).numpy(), chw(GREY16, 65535))
    unit = GREY.astype(np.float32) / 255
    np.testing.assert_array_equal(load_image(Image.fromarray(unit)).numpy(), unit[None])
    with pytest.raises(DeepMatchingError, match="16 bits"):
        load_image(Image.fromarray(GREY16.astype(np.int32) * 100))


def test_pil_failures_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no pixels"):
        load_image(Image.new("RGB", (0, 5)))
    path = tmp_path / "cut.jpg"
    path.write_bytes(TRUNCATED["JPEG"][:-100])
    with Image.open(path) as lazy, pytest.raises(DeepMatchingError, match="cannot be read by PIL"):
        load_image(lazy)


@pytest.fixture
def no_warning_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_warned_depths", set())


@pytest.mark.usefixtures("no_warning_so_far")
@pytest.mark.parametrize(("largest", "bits"), [(255, 8), (256, 10), (1023, 10), (4095, 12), (16383, 14)])
def test_fewer_than_16_bits_get_one_warning(caplog: pytest.LogCaptureFixture, largest: int, bits: int) -> None:
    image = np.array([[0, largest]], np.uint16)
    for name in ("image0", "image1"):
        loaded = load_image(image, name)
    assert loaded.max().item() == pytest.approx(largest / 65535)  # never rescaled on its own
    (record,) = caplog.records
    assert "image0" in record.getMessage() and f"--bit-depth {bits}" in record.getMessage()
    assert load_image(image, bit_depth=bits).max().item() == pytest.approx(largest / (2**bits - 1))


@pytest.mark.usefixtures("no_warning_so_far")
def test_other_images_get_no_warning_of_their_depth(caplog: pytest.LogCaptureFixture) -> None:
    for image in (np.uint16([[0, 16384]]), np.zeros((2, 2), np.uint16), np.full((2, 2), 9, np.uint8)):
        load_image(image)
    assert caplog.records == []
    with pytest.raises(DeepMatchingError, match="up to 4096, more than 12"):
        load_image(np.uint16([[0, 4096]]), bit_depth=12)


def test_a_smaller_image_holds_the_means_and_keeps_its_proportions() -> None:
    image = torch.arange(24.0).reshape(1, 4, 6) / 24
    smaller = shrink(image, 3)
    assert smaller.shape == (1, 2, 3)
    assert torch.allclose(smaller[0, 0, 0], image[0, :2, :2].mean())
    assert shrink(image, 6) is image and shrink(image, None) is image
    assert shrink(torch.rand(3, 10, 400), 40).shape == (3, 1, 40)
