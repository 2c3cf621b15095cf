import io
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.pipeline import count_outside
from deepmatching.geometry.homographies import apply, jacobians
from deepmatching.io.matches import from_corners, to_corners
from deepmatching.matches import Matches
from deepmatching.network.operators.decoding import Decoded
from helpers.html import picture_in


@pytest.fixture
def matches() -> Matches:
    """Three matches as the original gives them at half resolution: corners 4, 12, 20."""
    start = torch.tensor([[4.0, 4.0], [12.0, 4.0], [20.0, 4.0]])
    end = torch.tensor([[6.0, 2.0], [12.0, 8.0], [30.0, 0.0]])
    return Matches(from_corners(start), from_corners(end), torch.tensor([3.5, 1.25, 2.125]), (16, 24), (8, 40))


@pytest.fixture
def judged(matches: Matches) -> Matches:
    return replace(matches, confidence=torch.tensor([0.25, 0.5, 0.875]))


@pytest.fixture
def searched(matches: Matches) -> Matches:
    """Return the three matches, from the identity and from a transformation with a horizon."""
    table = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [[0.5, -0.2, 3], [0.1, 0.8, 1], [0.002, -0.001, 1]]])
    return replace(matches, transformation=torch.tensor([0, 1, 1]), transformations=table)


def test_the_first_pixel_centre_is_half_a_pixel_from_the_corner() -> None:
    assert from_corners(torch.tensor([0.0, 4.0])).tolist() == [-0.5, 3.5]


def test_text_keeps_the_originals_numbers(matches: Matches) -> None:
    assert matches.as_text() == "4 4 6 2 3.5 0\n12 4 12 8 1.25 0\n20 4 30 0 2.125 0\n"


def test_the_confidence_is_a_seventh_column_of_text_on_request(matches: Matches, judged: Matches) -> None:
    assert judged.as_text() == matches.as_text()
    assert judged[:1].as_text(confidence=True) == "4 4 6 2 3.5 0 0.25\n"
    with pytest.raises(DeepMatchingError, match="no confidence"):
        matches.as_text(confidence=True)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".json", ".npz", ".h5"])
def test_saved_matches_are_loaded_unchanged(judged: Matches, searched: Matches, tmp_path: Path, suffix: str) -> None:
    path, held = tmp_path / f"matches{suffix}", {".txt": 3, ".csv": 3}.get(suffix, 8)
    for matches in (judged, searched, searched[:0]):
        matches.save(path)
        loaded = Matches.load(path)
        assert list(tmp_path.iterdir()) == [path]
        for number, field in enumerate(fields(Matches)):
            found, expected = getattr(loaded, field.name), getattr(matches, field.name)
            is_held = number < held or (field.name == "confidence" and suffix == ".csv")
            if expected is None or not is_held:
                assert found is None
            else:
                assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected


def test_any_text_with_four_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("# another matcher\n1.5 2 3 4\n\n5 6 7 8 0.5\n")
    loaded = Matches.load(path)
    assert loaded.keypoints0.tolist() == [[1.0, 1.5], [4.5, 5.5]]
    assert loaded.scores.tolist() == [1.0, 0.5]


def written(write: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    write(stream := io.BytesIO(), *arrays, **named)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"1 2 3\n", "fewer than four"),
        ("a.txt", b"1 2 three 4\n", "not a readable"),
        ("a.txt", b"1 2 nan 4\n", "not finite"),
        ("a.npz", b"PK not a zip", "not a readable"),
        ("a.npz", b"junk", r"damaged, or not a \.npz"),
        ("a.npz", written(np.savez, keypoints0=np.zeros((9, 2)))[:-100], "not a readable"),
        ("a.npz", written(np.save, np.zeros((9, 2))), "a single array instead of an archive"),
        ("a.h5", b"not hdf5", "not a readable"),
        ("a.csv", b"1,2,3,4", "does not name the column x0"),
        ("a.csv", b"x0,y0,x1\n", "does not name the column y1"),
        ("a.csv", b"x0,y0,x1,y1\n1,2,3\n", "fewer columns"),
        ("a.csv", b"x0,y0,x1,y1\n1,2,3,four\n", "lines with words"),
        ("a.csv", b'x0,y0,x1,y1\n"1,2,3,4\n', "not CSV"),
        ("a.csv", b"x0,y0,x1,y1\n1,2,3,nan\n", "not finite in 1 of 1"),
        ("a.csv", b"\n", "lines with words"),
        ("a.json", b"[1, 2]", "begin with {"),
        ("a.json", b"{", "not JSON"),
        ("a.json", b'{"keypoints0": [[1, 2]]}', "no keypoints1, only keypoints0"),
        ("a.json", b'{"keypoints0": [[1, 2], [3]], "keypoints1": [[1, 2]]}', "keypoints0 are not rows of numbers"),
        ("a.json", b'{"keypoints0": [["1", "2"]], "keypoints1": [[1, 2]]}', "keypoints0 are not rows of numbers"),
        ("a.tsv", b"1 2 3 4", "name it .txt"),
    ],
)
def test_bad_files_raise_a_clear_error(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DeepMatchingError, match=words) as raised:
        Matches.load(tmp_path / name)
    assert "pickle" not in str(raised.value)


def test_arrays_become_tensors_and_one_match_can_be_selected() -> None:
    matches = Matches(np.zeros((2, 2)), np.ones((2, 2)), np.array([1.0, 2.0]))  # type: ignore[arg-type]
    assert matches.as_text().count("\n") == 2
    assert matches[-1].scores.tolist() == [2.0]
    for index in (np.int64(1), np.uint8(1), np.array(1), torch.tensor(1), np.argmax(matches.scores)):
        assert matches[index].scores.tolist() == [2.0]
    with pytest.raises(IndexError):
        matches[np.int64(2)]
    assert [one.scores.item() for one in matches] == [1.0, 2.0]


def test_matches_outside_the_image_are_counted_and_most_are_refused() -> None:
    start = torch.tensor([[0.0, 0.0], [9.5, 4.5], [10.0, 0.0], [0.0, -1.0]])
    matches = Matches(start, start, torch.ones(4))
    assert count_outside(matches, (5, 10)) == 2
    with pytest.raises(DeepMatchingError, match="2 of 3 matches start outside the image of 10x5 pixels"):
        count_outside(matches[1:], (5, 10))
    assert count_outside(matches[:0], (5, 10)) == 0


def test_a_missing_file_or_folder_and_an_unknown_suffix_are_refused(tmp_path: Path, matches: Matches) -> None:
    with pytest.raises(DeepMatchingError, match="no matches file"):
        Matches.load(tmp_path / "missing.txt")
    with pytest.raises(DeepMatchingError, match="name it"):
        matches.save(tmp_path / "a.xml")
    with pytest.raises(DeepMatchingError, match="no folder"):
        matches.save(tmp_path / "missing" / "a.txt")
    assert not list(tmp_path.iterdir())


def test_matches_can_be_selected(matches: Matches) -> None:
    assert len(matches) == 3
    assert len(matches[matches.scores > 2]) == 2
    assert matches.best(2).scores.tolist() == [3.5, 2.125]
    assert matches[:1].size0 == (16, 24)
    assert matches.displacements[2].tolist() == [10.0, -4.0]


def test_the_second_image_is_warped_by_the_homography_of_most_matches(pair: tuple[np.ndarray, np.ndarray]) -> None:
    start = torch.from_numpy(np.stack(np.meshgrid(range(8, 90, 8), range(8, 60, 8)), axis=2).reshape(-1, 2)).float()
    end = start + torch.tensor([6.0, -4.0])
    end[::7] += 20
    warped = Matches(start, end, torch.ones(len(start)), (64, 96), (64, 96)).warp(pair[1])
    np.testing.assert_allclose(warped[5:-1, 1:-7, :3].astype(int), pair[0][5:-1, 1:-7], atol=1)
    assert not warped[:3, :, 3].any() and (warped[5:, :-7, 3] == 255).all()
    with pytest.raises(DeepMatchingError, match="size0"):
        Matches(start, end, torch.ones(len(start))).warp(pair[1])


def test_images_of_another_size_are_refused(matches: Matches, tmp_path: Path) -> None:
    first, second = np.zeros((16, 24, 3), np.uint8), np.zeros((8, 40, 3), np.uint8)
    for call in (
        lambda: matches.draw(second, second, tmp_path / "m.png"),
        lambda: matches.draw(first, first, tmp_path / "m.png"),
        lambda: matches.warp(first),
    ):
        with pytest.raises(DeepMatchingError, match=r"24x16.*40x8|40x8.*24x16"):
            call()
    assert not list(tmp_path.iterdir())
    replace(matches, size0=None, size1=None).draw(second, first)  # nothing says that this is wrong


def test_adapters(matches: Matches) -> None:
    loftr = matches.as_kornia()
    assert set(loftr) == {"keypoints0", "keypoints1", "confidence", "batch_indexes"}
    assert loftr["batch_indexes"].shape == (3,)
    hloc = matches.as_hloc()
    assert hloc["matches0"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(hloc["keypoints1"][hloc["matches0"]], matches.keypoints1.numpy())
    keypoints0, keypoints1, links = matches.as_opencv()
    best = min(links, key=lambda link: link.distance)  # OpenCV sorts by distance: the smallest is the best
    assert keypoints0[best.queryIdx].pt == (3.5, 3.5)
    assert keypoints1[best.trainIdx].pt == (5.5, 1.5)
    images = np.zeros((16, 24, 3), np.uint8), np.zeros((8, 40, 3), np.uint8)
    assert cv2.drawMatches(images[0], keypoints0, images[1], keypoints1, links, None).shape == (16, 64, 3)


def test_a_picture_shows_the_confidence(matches: Matches, tmp_path: Path) -> None:
    images, path = (np.zeros((16, 24, 3), np.uint8), np.zeros((8, 40), np.uint8)), tmp_path / "m.png"
    judged = (replace(matches, confidence=given) for given in (None, torch.ones(3), torch.full((3,), 0.2)))
    plain, sure, unsure = (each.draw(*images, path) for each in judged)
    assert not np.array_equal(sure, plain) and not np.array_equal(sure, unsure)
    np.testing.assert_array_equal(cv2.imread(str(path))[:, :, ::-1], unsure)


def test_matches_describe_themselves_in_one_line(matches: Matches) -> None:
    assert repr(matches) == (
        "<3 matches between images of 24x16 and 40x8 pixels; displacement 4.0 px (median), 10.8 px (largest)>"
    )
    assert repr(matches[:0]) == "<0 matches between images of 24x16 and 40x8 pixels>"


def test_notebooks_show_a_picture_of_the_matches(matches: Matches) -> None:
    html = matches._repr_html_()
    assert picture_in(html).shape == (16, 24, 3)
    assert "3 matches between" in html and "<3" not in html  # escaped
    large = Matches(matches.keypoints0, matches.keypoints1, matches.scores, (600, 960), (600, 960))
    assert picture_in(large._repr_html_()).shape == (300, 480, 3)
    unknown = Matches(matches.keypoints0, matches.keypoints1, matches.scores)
    assert "<img" in unknown._repr_html_() and "<img" not in matches[:0]._repr_html_()


def test_matches_of_resized_images_keep_their_places(matches: Matches) -> None:
    double = matches.at_sizes((32, 48), (16, 80))
    assert (double.size0, double.size1) == ((32, 48), (16, 80))
    assert torch.equal(to_corners(double.keypoints0), 2 * to_corners(matches.keypoints0))
    assert torch.allclose(double.at_sizes((16, 24), (8, 40)).keypoints1, matches.keypoints1)
    with pytest.raises(DeepMatchingError, match="sizes of these matches' images are not known"):
        Matches(matches.keypoints0, matches.keypoints1, matches.scores).at_sizes((1, 1), (1, 1))


def grid(rows: int, columns: int, spacing: float = 8) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2) * spacing + spacing / 2 - 0.5


@pytest.mark.parametrize("spacing", [4.0, 8.0, 20.4])
def test_smooth_motion_agrees_and_random_motion_does_not(spacing: float) -> None:
    start = grid(10, 12, spacing)
    size = (round(10 * spacing), round(12 * spacing))
    rotated = start @ torch.tensor([[0.9, 0.4], [-0.4, 0.9]])
    assert Matches(start, rotated, torch.ones(120), size, size).agreement > 0.9
    noise = start + 10 * spacing * torch.rand(120, 2, generator=torch.Generator().manual_seed(0))
    assert Matches(start, noise, torch.ones(120), size, size).agreement < 0.1


def test_reference_points_without_a_match_and_outliers_do_not_agree() -> None:
    start = grid(10, 12)
    still = Matches(start, start, torch.ones(120), (80, 96), (80, 96))
    assert still.agreement == 1
    assert still[start[:, 1] > 40].agreement == 0.5  # the lower half
    assert replace(still, size0=None, size1=None)[60:].agreement == 1  # without sizes, only where matches are
    end = start.clone()
    end[65] += 5
    assert replace(still, keypoints1=end).agreement == 119 / 120  # an outlier, but not its neighbours


def test_the_expected_fraction_is_that_of_all_reference_points_whatever_is_kept() -> None:
    confidence, mask = torch.tensor([[[0.9, 0.2], [0.6, 0.0]]]), torch.tensor([[[True, False], [True, False]]])
    points = torch.zeros(2, 2, 2)
    decoded = Decoded(points, points[None], torch.zeros(1, 2, 2), torch.zeros(1, 2, 2).long(), mask, confidence)
    (found,) = Matches.from_decoded(decoded)
    assert (len(found), found.reference_points) == (2, 4)
    assert found.expected_fraction == pytest.approx(1.5 / 4)
    assert found.filter(0.9).expected_fraction == pytest.approx(0.9 / 4)
    for unknown in (replace(found, confidence=None), replace(found, reference_points=None)):
        assert math.isnan(unknown.expected_fraction)


def test_the_agreement_is_unknown_without_a_grid() -> None:
    for points in (torch.rand(50, 2) * 90, torch.zeros(0, 2), grid(2, 2), grid(1, 9)):
        assert np.isnan(Matches(points, points, torch.ones(len(points))).agreement)


def test_confident_matches_are_chosen(judged: Matches) -> None:
    assert judged.filter(0.5).scores.tolist() == [1.25, 2.125]
    assert judged.filter(0.5).confidence.tolist() == [0.5, 0.875]
    assert len(judged.filter(0)) == 3 and len(judged.filter(1)) == 0
    assert judged.best(2).confidence.tolist() == [0.875, 0.5]
    assert judged[judged.scores > 2].confidence.tolist() == [0.25, 0.875]
    assert judged.at_sizes((32, 48), (8, 40)).confidence is judged.confidence
    assert "confidence 0.54 (mean)" in repr(judged)


def test_only_a_confidence_is_filtered_and_it_is_a_probability(matches: Matches, judged: Matches) -> None:
    with pytest.raises(DeepMatchingError, match="no confidence"):
        matches.filter(0.5)
    for least in (-0.1, 1.1, float("nan")):
        with pytest.raises(DeepMatchingError, match="min_confidence"):
            judged.filter(least)


def test_adapters_give_the_confidence_where_others_expect_one(judged: Matches) -> None:
    assert judged.as_kornia()["confidence"].tolist() == [0.25, 0.5, 0.875]
    assert judged.as_hloc()["matching_scores0"].tolist() == [0.25, 0.5, 0.875]
    assert [match.distance for match in judged.as_opencv()[2]] == [0.75, 0.5, 0.125]


@pytest.mark.parametrize("is_judged", [False, True])
def test_the_matches_of_a_batch_are_those_of_its_pairs(is_judged: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 4, 5)
    scores = torch.rand(shape, generator=generator)
    scores[0, 1] = -torch.inf
    verified = (torch.rand(shape, generator=generator) < 0.5) & torch.isfinite(scores)
    verified[1] = False  # a pair without matches
    points = torch.rand(4, 5, 2, generator=generator), torch.rand(*shape, 2, generator=generator)
    confidence = torch.rand(shape, generator=generator) if is_judged else None
    decoded = Decoded(*points, scores, torch.zeros(shape, dtype=torch.int64), verified, confidence)
    for least in (0.0, 0.7):
        for b, found in enumerate(Matches.from_decoded(decoded, (32, 40), (32, 40), least)):
            kept, sure = verified[b], None if confidence is None else confidence[b]
            if sure is not None and least:
                kept = kept | (sure >= least) & torch.isfinite(scores[b])
            assert torch.equal(found.keypoints0, points[0][kept] - 0.5)
            assert torch.equal(found.keypoints1, points[1][b][kept] - 0.5)
            assert torch.equal(found.scores, scores[b][kept]) and found.size0 == found.size1 == (32, 40)
            assert found.confidence is None if sure is None else torch.equal(found.confidence, sure[kept])


def test_selected_matches_keep_their_transformation(searched: Matches) -> None:
    chosen = searched[[2, 0]].to("cpu")
    assert chosen.transformation is not None and chosen.transformation.tolist() == [1, 0]
    assert chosen.transformations is not None and len(chosen.transformations) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"transformation": np.array([0, 1, 2])}, "name one of its transformations"),
        ({"transformation": np.array([0, 1])}, "name one of its transformations"),
        ({"transformations": np.zeros((2, 2, 2), np.float32)}, "3 x 3 matrices"),
        ({"transformations": np.full((2, 3, 3), np.nan, np.float32)}, "3 x 3 matrices"),
    ],
)
def test_files_with_broken_transformations_are_refused(
    searched: Matches, tmp_path: Path, wrong: dict[str, np.ndarray], words: str
) -> None:
    searched.save(tmp_path / "good.npz")
    np.savez(tmp_path / "bad.npz", **{**np.load(tmp_path / "good.npz"), **wrong})
    with pytest.raises(DeepMatchingError, match=words):
        Matches.load(tmp_path / "bad.npz")


def test_the_derivatives_are_those_of_each_transformation(searched: Matches) -> None:
    assert searched.transformations is not None and searched.transformation is not None
    numbers, table = searched.transformation.tolist(), searched.transformations.double().numpy()
    for n, (start, found) in enumerate(zip(searched.keypoints0, searched.derivatives, strict=True)):
        expected = jacobians(table[numbers[n]], start[None].double().numpy())[0]
        assert np.allclose(found.numpy(), expected, atol=1e-5)
    unsearched = replace(searched, transformation=None, transformations=None)
    assert torch.equal(unsearched.derivatives, torch.eye(2).expand(3, 2, 2))


def test_points_that_a_search_takes_out_of_view_do_not_count_against_the_agreement() -> None:
    size = (160, 160)
    start = grid(20, 20)
    zoom = torch.tensor([[[4.0, 0, 0], [0, 4, 0], [0, 0, 1]]])
    seen = (start < 40).all(dim=1)
    exact = Matches(start[seen], 4 * start[seen], torch.ones(25), size, size, None, torch.zeros(25).long(), zoom)
    assert exact.in_view == pytest.approx(1 / 16, rel=0.1)
    assert exact.agreement > 0.9
    plain = replace(exact, transformation=None, transformations=None)
    assert plain.in_view == 1 and plain.agreement < 0.1
    nowhere = replace(exact, transformations=torch.tensor([[[1.0, 0, 999], [0, 1, 0], [0, 0, 1]]]))
    assert 0 < nowhere.in_view < 0.01


def test_transformations_of_resized_images_take_points_to_the_same_places(searched: Matches) -> None:
    resized = searched.at_sizes((32, 72), (40, 20))
    assert searched.transformations is not None and resized.transformations is not None
    for before, after in zip(searched.transformations.double(), resized.transformations.double(), strict=True):
        start, end = searched.keypoints0.double().numpy(), resized.keypoints0.double().numpy()
        reached = to_corners(apply(before.numpy(), start)) * (20 / 40, 40 / 8)
        assert np.allclose(to_corners(apply(after.numpy(), end)), reached, atol=1e-3)


def test_the_cycle_error_is_kept_in_files_and_chooses_matches(tmp_path: Path) -> None:
    points = np.array([[1.0, 2], [3, 4], [5, 6]])
    own = Matches(points, points + 1, np.ones(3), (8, 8), (8, 8), cycle_error=np.float32([0.5, 3, 1e6]))
    assert own.cycle_error is not None
    for suffix in (".csv", ".json", ".npz", ".h5"):
        own.save(tmp_path / f"m{suffix}")
        found = Matches.load(tmp_path / f"m{suffix}").cycle_error
        assert found is not None and torch.equal(found, own.cycle_error), suffix
    own.save(tmp_path / "m.txt")
    assert Matches.load(tmp_path / "m.txt").cycle_error is None
    assert own.filter(max_cycle_error=3).keypoints0.tolist() == [[1, 2], [3, 4]]
    assert "cycle error 3.00 px (median)" in repr(own)
    assert own[1:].cycle_error.tolist() == [3, 1e6]  # type: ignore[union-attr]
    assert own.at_sizes((16, 16), (8, 8)).cycle_error.tolist() == [1, 6, 2e6]  # type: ignore[union-attr]
    with pytest.raises(DeepMatchingError, match="no cycle error"):
        Matches(points, points, np.ones(3)).filter(max_cycle_error=3)
    with pytest.raises(DeepMatchingError, match="max_cycle_error"):
        own.filter(max_cycle_error=-1)
    with pytest.raises(DeepMatchingError, match=r"cycle_error of shape \(3,\)"):
        Matches(points, points, np.ones(3), cycle_error=np.ones(2))
