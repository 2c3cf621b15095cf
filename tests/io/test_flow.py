"""Flow formats: round trips, known bytes, and files that are refused."""

import pickle
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepmatching.errors import DeepMatchingError
from deepmatching.io.flow import read_flow, write_flow

SUFFIXES = [".flo", ".png", ".pfm", ".npy"]

# Multiples of 1/64 px, which even KITTI keeps, and unknown pixels.
flows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 7), st.integers(1, 7), st.just(2)),
    elements=st.integers(-32768, 32767).map(lambda n: n / 64) | st.just(float("nan")),
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(flow=flows, suffix=st.sampled_from(SUFFIXES))
def test_round_trip(tmp_path: Path, flow: np.ndarray, suffix: str) -> None:
    path = tmp_path / f"fluß{suffix.upper()}"
    write_flow(path, flow)
    expected = flow.copy()
    expected[np.isnan(flow).any(axis=2)] = np.nan  # half a displacement is unknown
    read = read_flow(path)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected)


def test_float_formats_are_exact_and_write_any_real_dtype(tmp_path: Path) -> None:
    flow = np.random.default_rng(0).normal(0, 1000, (5, 6, 2))
    flow[0, 0, 0] = struct.unpack("<f", b"\n \n?")[0]  # in a PFM, the first byte looks like more of the header's end
    for suffix in (".flo", ".pfm", ".npy"):
        write_flow(tmp_path / f"a{suffix}", flow)
        np.testing.assert_array_equal(read_flow(tmp_path / f"a{suffix}"), flow.astype(np.float32))


def test_flo_bytes_are_middleburys(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 1.5e9, 0.0]
    data = struct.pack("<fii6f", 202021.25, 3, 1, *values)
    path = tmp_path / "a.flo"
    path.write_bytes(data)
    np.testing.assert_array_equal(read_flow(path), np.float32([[[1, 2], [3, 4], [np.nan, np.nan]]]))
    write_flow(path, np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    assert path.read_bytes() == struct.pack("<fii4f", 202021.25, 2, 1, *values[:4])


def test_kitti_stores_64_times_the_displacement_in_16_bits(tmp_path: Path) -> None:
    # OpenCV takes BGR: valid, v, u.
    pixels = np.array([[[1, 32768 - 64, 32768 + 96], [0, 5, 5]]], np.uint16)
    path = tmp_path / "a.png"
    path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    np.testing.assert_array_equal(read_flow(path), np.float32([[[1.5, -1.0], [np.nan, np.nan]]]))
    with pytest.raises(DeepMatchingError, match="512"):
        write_flow(path, np.full((2, 2, 2), 600.0))


@pytest.mark.parametrize("order", ["<", ">"])
def test_pfm_is_bottom_up_in_either_byte_order(tmp_path: Path, order: str) -> None:
    rows = struct.pack(f"{order}6f", 1.0, 2.0, 9.0, 3.0, np.inf, 9.0)
    scale = "-1" if order == "<" else "1"
    path = tmp_path / "a.pfm"
    path.write_bytes(f"PF\n1 2\n{scale}\n".encode() + rows)
    np.testing.assert_array_equal(read_flow(path), np.float32([[[np.nan, np.nan]], [[1, 2]]]))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_and_surplus_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_flow(path, np.arange(24.0).reshape(3, 4, 2))
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DeepMatchingError):
            read_flow(path)
    if suffix in (".flo", ".pfm"):
        path.write_bytes(data + b"\0")
        with pytest.raises(DeepMatchingError, match="bytes of data"):
            read_flow(path)


def test_damaged_and_mismatched_files_are_one_sentence(tmp_path: Path) -> None:
    rgb8 = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()
    grey16 = cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1].tobytes()
    cases = {
        "magic.flo": b"HEIP" + b"\0" * 40,
        "negative.flo": b"PIEH" + struct.pack("<ii", -1, 4),
        "huge.flo": b"PIEH" + struct.pack("<ii", 10**9, 10**9),
        "eight.png": rgb8,
        "grey.png": grey16,
        "one.pfm": b"Pf\n2 2\n-1\n" + b"\0" * 16,
        "words.pfm": b"PF\ntwo 2\n-1\n",
        "zero.pfm": b"PF\n0 2\n-1\n",
        "shape.npy": np.zeros((2, 4, 4), np.float32),
        "complex.npy": np.zeros((4, 4, 2), complex),
        "object.npy": np.array([[[1, None]]]),
        "pickle.npy": pickle.dumps([1, 2, 3]),
    }
    for name, content in cases.items():
        path = tmp_path / name
        np.save(path, content) if isinstance(content, np.ndarray) else path.write_bytes(content)
        with pytest.raises(DeepMatchingError, match=name) as caught:
            read_flow(path)
        assert "\n" not in str(caught.value)


def test_unknown_suffixes_missing_files_and_bad_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="flow format"):
        read_flow(tmp_path / "a.exr")
    with pytest.raises(DeepMatchingError, match="flow format"):
        write_flow(tmp_path / "a", np.zeros((2, 2, 2)))
    for suffix in SUFFIXES:
        with pytest.raises(DeepMatchingError, match=f"'.*missing{suffix}'"):
            read_flow(tmp_path / f"missing{suffix}")
    for flow in (np.zeros((2, 2)), np.zeros((0, 2, 2)), np.zeros((2, 2, 3)), np.zeros((2, 2, 2), complex)):
        with pytest.raises(DeepMatchingError, match="must be"):
            write_flow(tmp_path / "a.flo", flow)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_unknown_without_a_warning(tmp_path: Path) -> None:
    flow = np.ones((2, 3, 2))
    flow[0, 0, 0] = 1e300
    np.save(tmp_path / "f.npy", flow)
    write_flow(tmp_path / "g.flo", flow)
    for path in (tmp_path / "f.npy", tmp_path / "g.flo"):
        found = read_flow(path)
        assert np.isnan(found[0, 0]).all() and np.isfinite(found).sum() == 10
