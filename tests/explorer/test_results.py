"""What the explorer computes is what the library computes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.explorer import page, payloads, results
from deepmatching.explorer.pictures import Pair, Unknown
from deepmatching.explorer.results import STAGES, Result, RunSettings, Traces, compute
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from helpers.explorer import QUICK, unpack

MODELS = ("compact", "hog")


def test_matches_and_flow_are_those_of_the_matcher(result: Result) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=16, device="cpu")
    expected = matcher.match(*result.pair.images)
    assert torch.equal(result.matches.keypoints1, expected.keypoints1)
    flow = matcher.flow(*result.pair.images)
    assert result.flow is not None
    np.testing.assert_allclose(result.flow.flow, flow.flow, atol=1e-4)


def test_images_of_two_sizes_have_matches_and_a_flow_of_the_first_size(small_pair: Pair) -> None:
    """Files of these sizes were reduced, the first to a half and the second to a third."""
    first, second = small_pair.images
    pair = Pair("x", ("a", "b"), (first, second[:, :48]), ((128, 192), (144, 288)))
    seen: list[str] = []
    found = compute(pair, RunSettings.of({"model": "hog", "radius": "full", "levels": 2}, MODELS), "cpu", seen.append)
    assert seen == list(STAGES) and found.geometry.L == 2
    assert len(found.matches) > 20 and found.flow is not None
    expected = DeepMatcher.from_pretrained("hog", radius="full", levels=2, device="cpu").flow(*pair.images)
    np.testing.assert_allclose(found.flow.flow, expected.flow, atol=1e-4)
    assert unpack(payloads.layers(found))[1]["flow"].shape == (64, 96, 2)
    written = np.frombuffer(page.file_of(found, "flow.flo"), np.float32, offset=12).reshape(128, 192, 2)
    x, y = 100, 60  # of the first file, in pixels; half a pixel more is measured at the corner
    moved = expected.flow[30:32, 49:51].mean(axis=(0, 1))[0]
    there = ((x + 0.5) / 2 + moved) * 3 - 0.5
    assert x + written[y, x, 0] == pytest.approx(there, abs=1)
    assert page.file_of(found, "flow-picture.png").startswith(b"\x89PNG")


def test_a_pair_whose_flow_fails_says_why(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise DeepMatchingError("There are no matches.")

    monkeypatch.setattr(DeepMatcher, "flow_between", fail)
    found = compute(small_pair, QUICK, "cpu", lambda stage: None)
    assert found.flow is None and payloads.facts(found)["no_flow"] == "There are no matches."
    with pytest.raises(DeepMatchingError, match="no flow"):
        page.file_of(found, "flow.flo")


def test_a_search_makes_no_plain_match_first(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "without_masked", lambda *_: pytest.fail("a plain match was made"))
    assert len(compute(small_pair, replace(QUICK, search=True), "cpu", lambda stage: None).matches)


def masked(pair: Pair) -> Pair:
    """Return the pair with a mask of the upper right of the first image, and of the left of the second."""
    masks = np.ones((64, 96), bool), np.ones((64, 96), bool)
    masks[0][:32, 48:] = False
    masks[1][:, :24] = False
    return replace(pair, masks=masks, mask_names=("m0.png", "m1.png"))


@pytest.mark.parametrize("search", [False, True])
def test_masks_give_the_matches_and_the_flow_of_the_matcher(small_pair: Pair, search: bool) -> None:
    pair = masked(small_pair)
    found = compute(pair, replace(QUICK, search=search), "cpu", lambda stage: None)
    matcher = DeepMatcher.from_pretrained("hog", radius=16, search=search, device="cpu")
    names = dict(zip(("mask0", "mask1"), pair.masks, strict=True))
    expected = matcher.match(*pair.images, **names)
    assert 0 < len(expected) < len(matcher.match(*pair.images))
    assert torch.equal(found.matches.keypoints1, expected.keypoints1)
    assert found.matches.reference_points == expected.reference_points
    assert found.kept.sum() == len(expected)
    assert found.flow is not None and not found.flow.confidence[:32, 48:].any()
    if not search:
        flow = matcher.flow(*pair.images, **names)
        np.testing.assert_allclose(found.flow.flow, flow.flow, atol=1e-4)
        np.testing.assert_allclose(found.flow.confidence, flow.confidence, atol=1e-4)


def test_a_pair_with_masks_has_no_maps_and_an_exported_page_names_its_masks(small_pair: Pair) -> None:
    found = compute(masked(small_pair), QUICK, "cpu", lambda stage: None)
    with pytest.raises(DeepMatchingError, match="masks"):
        Traces().inspect(found, 1, 1)
    assert "masks" in payloads.facts(found)["no_maps"]
    exported = page.exported_page(found, Traces())
    assert '"points":{}' in exported and '"mask_names":["m0.png","m1.png"]' in exported


def test_the_matches_of_a_search_are_shown_on_the_grid_and_have_no_maps(
    small_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = torch.tensor([[11.5, 11.5], [20.0, 40.0]])
    one = {"transformation": torch.zeros(2, dtype=torch.long), "transformations": torch.eye(3)[None]}
    few = Matches(start, start + 2, torch.ones(2), (64, 96), (64, 96), torch.full((2,), 0.9), **one)
    monkeypatch.setattr(DeepMatcher, "or_wide", lambda *arguments: replace(few, reference_points=96))
    found = compute(small_pair, QUICK, "cpu", lambda stage: None)
    _, grid = unpack(payloads.grid(found))
    rows, columns = np.nonzero(grid["flags"])
    np.testing.assert_array_equal(grid["points0"][rows, columns], start + 0.5)
    np.testing.assert_array_equal(grid["points1"][rows, columns], start + 2.5)
    assert found.kept.sum() == 2 and found.flow is not None and found.flow.matches == 2
    facts = payloads.facts(found)
    assert "a search found these" in facts["notes"][0] and "probably wrong" in facts["warning"]
    with pytest.raises(DeepMatchingError, match="no score maps"):
        Traces().inspect(found, 1, 1)
    assert '"points":{}' in page.exported_page(found, Traces())


def test_a_search_that_was_asked_for_shows_its_matches_and_needs_no_note(
    small_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = torch.tensor([[11.5, 11.5], [20.0, 40.0]])
    some = Matches(start, start + 2, torch.ones(2), (64, 96), (64, 96), torch.full((2,), 0.9), reference_points=96)
    monkeypatch.setattr(DeepMatcher, "searched", lambda *arguments: some)
    found = compute(small_pair, replace(QUICK, search=True), "cpu", lambda stage: None)
    facts = payloads.facts(found)
    assert facts["searched"] and facts["settings"]["search"] and facts["matches"] == found.kept.sum() == 2
    assert facts["notes"] == [] and "try a" not in facts["warning"] and "probably wrong" in facts["warning"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "cat"}, "no model 'cat'"),
        ({"model": "/etc/passwd"}, "no model"),
        ({"radius": -1}, "radius"),
        ({"radius": "wide"}, "radius"),
        ({"levels": 1.5}, "levels"),
        ({"levels": "two"}, "levels"),
        ({"search": 1}, "search"),
        ({"speed": 1}, "model, radius, levels and search"),
        ([], "model, radius, levels and search"),
    ],
)
def test_bad_settings_are_reported(values: object, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        RunSettings.of(values, MODELS)


def test_the_grid_that_the_page_gets_is_the_decoded_one(result: Result) -> None:
    _, arrays = unpack(payloads.grid(result))
    np.testing.assert_array_equal(arrays["points1"], result.decoded.points1[0].numpy())
    assert int((arrays["flags"] & 2).astype(bool).sum()) == len(result.matches) == payloads.facts(result)["matches"]
    assert "confidence" not in arrays  # HOG does not judge


def test_the_layers_of_an_exported_page_are_nearly_those_of_the_server(result: Result) -> None:
    (_, exact), (_, small) = unpack(payloads.layers(result)), unpack(payloads.layers(result, small=True))
    assert exact.keys() == small.keys() == {"edges", "flow", "confidence"}
    assert np.abs(exact["flow"] - small["flow"]).max() <= 1 / 64 + 1e-6
    np.testing.assert_array_equal(exact["edges"], small["edges"])


def test_the_maps_of_a_point_reach_the_page(result: Result, traces: Traces) -> None:
    inspection = traces.inspect(result, 3, 5)
    (meta, exact), (_, small) = unpack(payloads.point(inspection)), unpack(payloads.point(inspection, small=True))
    assert meta["index"] == [3, 5] and len(meta["path"]) == len(meta["maps"]) == result.geometry.L + 1
    np.testing.assert_array_equal(exact["Q0"], inspection.maps[0].Q)
    known = np.isfinite(exact["Q0"])
    np.testing.assert_array_equal(np.isfinite(small["Q0"]), known)
    assert np.abs(small["Q0"][known] - exact["Q0"][known]).max() < 0.02


def test_few_traces_are_kept(result: Result) -> None:
    first, second = replace(result, trace=None), replace(result, trace=None)
    few = Traces(max_bytes=1)
    few.inspect(first, 0, 0)
    assert first.trace is not None
    few.inspect(second, 0, 0)
    assert second.trace is not None and first.trace is None
    enough = Traces()
    enough.inspect(first, 0, 0)
    enough.inspect(second, 0, 0)
    assert second.trace is not None and first.trace is not None


def test_downloads_are_in_pixels_of_the_original_images(result: Result) -> None:
    original = result.matches.at_sizes((128, 192), (128, 192))
    lines = page.file_of(result, "matches.txt").decode().splitlines()
    assert len(lines) == len(original)
    x = float(lines[-1].split()[0])
    assert x == pytest.approx(float(original.keypoints0[-1, 0]) + 0.5, abs=0.01)
    flow = page.file_of(result, "flow.flo")
    assert np.frombuffer(flow, np.int32, 2, 4).tolist() == [192, 128]


def test_every_download_is_what_its_name_says(result: Result, traces: Traces, tmp_path: Path) -> None:
    pictures = [page.file_of(result, name) for name in page.DOWNLOADS if name.endswith(".png")]
    for picture in (*pictures, page.scores_picture(result, traces.inspect(result, 2, 2))):
        assert picture.startswith(b"\x89PNG")
    for name in ("matches.npz", "matches.h5"):
        (tmp_path / name).write_bytes(page.file_of(result, name))
        assert len(Matches.load(tmp_path / name)) == len(result.matches)
    with pytest.raises(Unknown, match="secrets"):
        page.file_of(result, "../secrets")
