from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.drawing.flow import draw_confidence, draw_flow, draw_flow_figure, draw_frame
from deepmatching.drawing.pictures import displacement_colors
from deepmatching.errors import DeepMatchingError
from deepmatching.flow.result import FlowResult, FlowTensors
from deepmatching.io.flow import read_flow
from helpers.html import picture_in


@pytest.fixture
def result() -> FlowResult:
    generator = np.random.default_rng(0)
    flow = generator.uniform(-8, 8, (60, 80, 2)).astype(np.float32)
    return FlowResult(flow, generator.uniform(0, 1, (60, 80)).astype(np.float32))


@pytest.mark.parametrize("suffix", [".flo", ".pfm", ".npy", ".png"])
def test_a_saved_flow_is_read_unchanged(result: FlowResult, tmp_path: Path, suffix: str) -> None:
    result.save(tmp_path / f"f{suffix}")
    np.testing.assert_allclose(read_flow(tmp_path / f"f{suffix}"), result.flow, atol=0.0079 if suffix == ".png" else 0)


def test_the_confidence_is_saved_as_floats_or_16_bits(result: FlowResult, tmp_path: Path) -> None:
    result.save_confidence(tmp_path / "c.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), result.confidence)
    result.save_confidence(tmp_path / "c.png")
    levels = cv2.imread(str(tmp_path / "c.png"), cv2.IMREAD_UNCHANGED)
    assert levels.dtype == np.uint16
    np.testing.assert_allclose(levels / 65535, result.confidence, atol=1e-5)
    with pytest.raises(DeepMatchingError, match=r"name it \.npy or \.png"):
        result.save_confidence(tmp_path / "c.jpg")


def test_colours_are_middleburys_and_full_beyond_the_range() -> None:
    flow = np.zeros((50, 60, 2), np.float32)
    flow[:, 20:40] = (3, 4)
    flow[:, 40:] = (30, 40)
    picture = draw_flow(flow, max_norm=10, legend=False)
    assert (picture[:, :20] == 255).all()
    np.testing.assert_array_equal(picture[0, 20], displacement_colors(np.array([3.0, 4.0]), 10.0))
    np.testing.assert_array_equal(picture[0, 40], displacement_colors(np.array([6.0, 8.0]), 10.001))
    assert picture.shape == (50, 60, 3)


def test_confidence_grows_brighter() -> None:
    shades = draw_confidence(np.linspace(0, 1, 11)[None].astype(np.float32))[0].astype(float).mean(axis=1)
    assert (np.diff(shades) > 0).all()


def test_the_second_image_warped_by_the_flow_is_the_first_where_it_is_visible(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    flow, occlusion = np.full((64, 96, 2), (6, -4), np.float32), np.zeros((64, 96), np.float32)
    occlusion[10:20, 30:50] = 0.7
    likely = np.ones((64, 96), np.float32)
    back = FlowResult(flow, likely).warp(pair[1])
    np.testing.assert_array_equal(back[4:, :-6, :3], pair[0][4:, :-6])
    assert (back[4:, :-6, 3] == 255).all() and not back[:4, :, 3].any() and not back[:, -6:, 3].any()  # these have left
    hidden = back[..., 3] > FlowResult(flow, likely, occlusion=occlusion).warp(pair[1])[..., 3]
    np.testing.assert_array_equal(hidden, occlusion > 0)


def test_pictures_are_drawn_and_written(result: FlowResult, tmp_path: Path) -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    plain = result.draw(path=tmp_path / "f.png")
    assert plain.shape == (60, 80, 3)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "f.png"))[:, :, ::-1], plain)
    three, four = result.draw(image), result.draw(image, image)
    assert three.shape[0] > three.shape[1] and four.shape[1] > three.shape[1]
    with pytest.raises(DeepMatchingError, match="of one size"):
        draw_flow_figure(image[:50], result.flow, result.confidence)
    with pytest.raises(DeepMatchingError, match=r"\(H,W,2\)"):
        draw_flow(result.flow[..., 0])


def test_pictures_of_a_video_have_even_sides() -> None:
    picture = draw_frame(np.zeros((25, 31, 3), np.uint8), np.zeros((25, 31, 2), np.float32), 1.0)
    assert picture.shape == (50, 30, 3)
    assert picture[:25].max() == 0 and picture[25:].min() == 255


def test_a_frame_has_its_flow_beside_it_or_instead_of_it_or_as_arrows_where_that_is_sure() -> None:
    image, flow = np.full((240, 320, 3), 100, np.uint8), np.zeros((240, 320, 2), np.float32)
    flow[..., 0], sure = 6.0, np.ones((240, 320), np.float32)
    colors = draw_flow(flow, 8.0)
    np.testing.assert_array_equal(draw_frame(image, flow, 8.0, "colours"), colors)
    np.testing.assert_array_equal(draw_frame(image, flow, 8.0, "beside"), np.concatenate([image, colors], axis=1))
    sure[:, 160:] = 0.2
    arrows = draw_frame(torch.full((3, 240, 320), 100 / 255), flow, 8.0, "arrows", sure)
    drawn = (arrows != 100).any(axis=2)[:160]  # above the legend
    assert drawn[:, :160].mean() > 0.02 and not drawn[:, 172:].any()
    assert np.ptp(arrows[:160, :160].astype(int), axis=2).max() > 100  # they have colours
    with pytest.raises(DeepMatchingError, match="'below'"):
        draw_frame(image, flow, 8.0, "below")  # type: ignore[arg-type]


def test_a_flow_describes_itself_in_one_line_and_a_picture() -> None:
    flow = np.full((30, 40, 2), (3, 4), np.float32)
    result = FlowResult(flow, np.full((30, 40), 0.25, np.float32), 12)
    assert repr(result) == (
        "<flow of 40x30 pixels from 12 matches; motion 5.0 px (median), 5.0 px (largest); confidence 0.25 (mean)>"
    )
    html = result._repr_html_()
    assert "flow of 40x30 pixels" in html
    np.testing.assert_array_equal(picture_in(html), result.draw())


def test_a_flow_of_resized_images_has_their_size_and_pixels() -> None:
    result = FlowResult(np.full((30, 40, 2), (3, 4), np.float32), np.full((30, 40), 0.25, np.float32), 12)
    larger = result.at_size((60, 120))
    assert larger.flow.shape == (60, 120, 2) and larger.confidence.shape == (60, 120)
    np.testing.assert_allclose(larger.flow, np.broadcast_to((9, 8), (60, 120, 2)), rtol=1e-6)
    assert result.at_size((30, 40)) is result


def test_a_flow_to_a_resized_second_image_leads_to_the_same_place_there() -> None:
    result = FlowResult(np.full((30, 40, 2), (3, 4), np.float32), np.full((30, 40), 0.25, np.float32))
    moved = result.at_size((30, 40), ((50, 60), (100, 30))).flow  # pixels centres to corners, and back
    np.testing.assert_allclose(moved[7, 9], ((9.5 + 3) / 2 - 0.5 - 9, (7.5 + 4) * 2 - 0.5 - 7))
    both = result.at_size((60, 120), ((50, 60), (100, 180))).flow
    np.testing.assert_allclose(both, np.broadcast_to((9, 8), (60, 120, 2)), rtol=1e-6)


def tensors_of(matches: int) -> FlowTensors:
    flow, confidence = torch.full((30, 40, 2), 2.0), torch.full((30, 40), 0.5)
    return FlowTensors(flow, confidence, torch.tensor(matches), torch.tensor(0.75), torch.tensor(0.5))


def test_a_flow_on_a_device_is_copied_when_it_is_read() -> None:
    read: list[str] = []
    result = FlowResult.on_device(tensors_of(12), lambda: read.append("seconds") or {"matching": 0.5})
    assert result.at_size((30, 40)) is result and not read
    assert [value for value in vars(result).values() if isinstance(value, np.ndarray)] == []  # nothing is copied yet
    assert result.tensors is not None and result.tensors.flow.shape == (30, 40, 2)
    assert result.read() is result and isinstance(vars(result)["_flow"], np.ndarray)
    assert isinstance(result.flow, np.ndarray) and result.flow is result.flow
    assert (result.matches, result.agreement, result.confidence.mean()) == (12, 0.75, 0.5)
    assert result.seconds == result.seconds == {"matching": 0.5} and read == ["seconds"]
    larger = result.at_size((60, 80))
    assert larger.flow.shape == (60, 80, 2) and larger.matches == 12 and larger.tensors is None


def test_a_flow_without_matches_says_so_when_it_is_read() -> None:
    result = FlowResult.on_device(tensors_of(0), dict)
    for name in ("flow", "confidence"):
        with pytest.raises(DeepMatchingError):
            getattr(result, name)
