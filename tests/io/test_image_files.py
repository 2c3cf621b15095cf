"""Image files: damaged and odd ones, and positions in upright photographs and in their stored pixels."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from deepmatching.errors import DeepMatchingError
from deepmatching.io.image_files import read_alpha, read_orientation, stored_size, to_stored
from deepmatching.io.images import load_image
from helpers.synthetic_pictures import draw_photo

RGB = draw_photo(0, 30, 40)
PNG = cv2.imencode(".png", np.ascontiguousarray(RGB[:, :, ::-1]))[1].tobytes()


def load_bytes(tmp_path: Path, data: bytes) -> torch.Tensor:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    return load_image(path)


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def test_a_damaged_png_is_refused_silently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(PNG)
    data[len(data) // 2] ^= 1
    with pytest.raises(DeepMatchingError, match="damaged"):
        load_bytes(tmp_path, bytes(data))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "odd",
    [
        chunk(b"iCCP", b"profile\0\0" + zlib.compress(b"not a profile")),
        chunk(b"tEXt", b"a\0b")[:-4] + b"0000",  # a wrong checksum
        2 * chunk(b"gAMA", (45455).to_bytes(4, "big")),
        chunk(b"sBIT", b"\0"),
    ],
    ids=["profile", "text", "gamma", "bits"],
)
def test_odd_remarks_in_a_png_change_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], odd: bytes) -> None:
    found = load_bytes(tmp_path, PNG[:33] + odd + PNG[33:])  # after the header
    np.testing.assert_array_equal(found.permute(1, 2, 0), RGB.astype(np.float32) / np.float32(255))
    assert capfd.readouterr() == ("", "")


def test_a_png_with_a_bad_stream_or_fewer_pixels_than_it_states_is_refused(tmp_path: Path) -> None:
    for side, stream in ((20, b"no zlib"), *((side, zlib.compress(bytes(1000))) for side in (20_000, 30_000))):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
        with pytest.raises(DeepMatchingError):
            load_bytes(tmp_path, b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", stream) + chunk(b"IEND", b""))
    zeros = np.zeros((2000, 3000), np.uint8)  # as well compressed as can be
    cv2.imwrite(str(tmp_path / "b.png"), zeros, [cv2.IMWRITE_PNG_COMPRESSION, 9, cv2.IMWRITE_PNG_BILEVEL, 1])
    assert load_image(tmp_path / "b.png").shape == (1, 2000, 3000)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_stored_and_upright_positions_show_the_same_pixel(orientation: int, suffix: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    path, exif = tmp_path / f"photo.{suffix}", Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    upright = load_image(path).numpy()
    stored = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)[:, :, ::-1]
    size = (upright.shape[1], upright.shape[2])
    assert read_orientation(path) == orientation
    assert stored_size(size, orientation) == stored.shape[:2]
    points = np.array([(x, y) for y in range(size[0]) for x in range(size[1])], np.float32)
    moved = to_stored(points, size, orientation).astype(int)
    found = stored[moved[:, 1], moved[:, 0]]
    expected = upright[:, points[:, 1].astype(int), points[:, 0].astype(int)].T * 255
    np.testing.assert_array_equal(found, np.rint(expected))


def test_files_without_a_readable_orientation_are_upright(tmp_path: Path) -> None:
    assert read_orientation(tmp_path / "missing.jpg") == 1
    for number, data in enumerate((b"text", b"\xff\xd8\xff\xe1\x00\x10Exif\0\0II*\0", b"\xff\xd8\xff\xe1", b"II*\0")):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        assert read_orientation(path) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
def test_alpha_is_turned_as_the_colours_are(
    orientation: int, suffix: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    alike = rng.integers(0, 2, (5, 7, 1), np.uint8).repeat(4, axis=2) * 255  # colours and alpha
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(alike).save(tmp_path / f"a{suffix}", exif=exif, **({"lossless": True} if suffix == ".webp" else {}))
    alpha = read_alpha(tmp_path / f"a{suffix}")
    assert alpha is not None and np.array_equal(alpha, load_image(tmp_path / f"a{suffix}")[0] * 255)


def test_what_has_no_alpha_has_none(tmp_path: Path) -> None:
    for name, mode in (("a.png", "RGB"), ("a.jpg", "RGB"), ("a.tif", "L"), ("b.png", "P")):
        Image.new(mode, (4, 3)).save(tmp_path / name)
        assert read_alpha(tmp_path / name) is None
    (tmp_path / "bad.png").write_bytes(PNG[:-30])
    with pytest.raises(DeepMatchingError, match=r"bad\.png"):
        read_alpha(tmp_path / "bad.png")
