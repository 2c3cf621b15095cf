"""The error of the geometry that matches give, against matches whose error is known."""

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching.data.datasets import Entry, Manifest
from deepmatching.data.datasets.pairs import Pose
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import Evaluation, evaluate, evaluate_flow
from deepmatching.evaluation.report import two_view_pairs_table, two_view_table
from deepmatching.evaluation.results import bootstrap_interval
from deepmatching.evaluation.two_view import two_view_metrics
from deepmatching.matches import Matches
from helpers.fake_datasets import FLOW, write_manifest, write_pairs
from helpers.fake_methods import Perfect

SIZE = (480, 640)
K = np.array([[600.0, 0, 320], [0, 600, 240], [0, 0, 1]])
TRANSLATION = np.array([0.8, 0.1, -0.3])


def rotation(degrees: float) -> np.ndarray:
    return cv2.Rodrigues(np.radians([degrees, 0.0, 0.0]))[0]


def pose(degrees: float = 5.0, translation: np.ndarray = TRANSLATION) -> Pose:
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = rotation(degrees), translation
    return Pose(K, K, motion)


def views(degrees: float = 5.0) -> np.ndarray:
    """300 points in front of two cameras: x0 y0 x1 y1."""
    points = np.random.default_rng(0).uniform((-1.5, -1.5, 4), (1.5, 1.5, 9), (300, 3))
    ends = points @ K.T, (points @ rotation(degrees).T + TRANSLATION) @ K.T
    return np.hstack([end[:, :2] / end[:, 2:] for end in ends])


def matches_of(table: np.ndarray, confidence: np.ndarray | None = None) -> Matches:
    return Matches(*np.float32(np.split(table, 2, axis=1)), np.ones(len(table)), confidence=confidence)  # type: ignore[arg-type]


def planar(shift: float = 0.0, size: tuple[int, int] = SIZE) -> Matches:
    """Return matches that move by (20 + shift, 10)."""
    start = np.random.default_rng(0).uniform(0, size[::-1], (200, 2))
    return matches_of(np.hstack([start, start + np.array([20 + shift, 10])]))


@pytest.fixture
def plane(tmp_path: Path) -> Entry:
    np.savetxt(tmp_path / "h.txt", -2 * np.array([[1, 0, 20], [0, 1, 10], [0, 0, 1]]))  # the factor means nothing
    return Entry("g", "n", tmp_path, tmp_path, homography=tmp_path / "h.txt")


@pytest.fixture
def scene(tmp_path: Path) -> Entry:
    np.savetxt(tmp_path / "points.txt", views()[:20])
    return Entry("g", "n", tmp_path, tmp_path, points=tmp_path / "points.txt")


def test_the_error_of_a_homography_is_a_distance(plane: Entry) -> None:
    exact, off = (two_view_metrics(planar(shift), plane, SIZE, SIZE) for shift in (0, 6))
    assert exact["error"] < 0.001 and exact["auc@5"] > 99.9
    assert off["error"] == pytest.approx(6, abs=0.01)
    assert [off[f"auc@{limit}"] for limit in (5, 10, 20)] == pytest.approx([0, 40, 70], abs=0.1)


def test_errors_are_in_pixels_of_images_of_at_most_1024(plane: Entry) -> None:
    large = (1536, 2048)
    assert two_view_metrics(planar(6, large), plane, large, large)["error"] == pytest.approx(3, abs=0.01)


def test_points_that_leave_the_second_image_do_not_count(plane: Entry) -> None:
    near, far = planar(), planar(90)  # those that start on the right leave the second image, which is narrow
    halves = [m[torch.as_tensor(m.keypoints0[:, 0] < 250) == is_left] for m, is_left in ((near, True), (far, False))]
    assert two_view_metrics(halves[0], plane, SIZE, (480, 270))["error"] < 0.001
    assert math.isnan(two_view_metrics(near, plane, SIZE, (5, 5))["error"])


def test_the_error_of_marked_points_is_their_distance_to_lines(scene: Entry) -> None:
    assert two_view_metrics(matches_of(views()), scene, SIZE, SIZE)["error"] < 0.05
    turned = two_view_metrics(matches_of(views(7.0)), scene, SIZE, SIZE)["error"]
    assert 2 < turned < 40
    assert two_view_metrics(matches_of(2 * views(7.0)), scene, (960, 1280), (960, 1280))["error"] != turned


def test_the_error_of_a_pose_is_the_larger_angle() -> None:
    found, entry = matches_of(views()), Entry("g", "n", Path(), Path(), pose=pose())
    assert two_view_metrics(found, entry, SIZE, SIZE)["error"] < 0.5
    turned = Entry("g", "n", Path(), Path(), pose=pose(8.0))
    assert two_view_metrics(found, turned, SIZE, SIZE)["error"] == pytest.approx(3, abs=0.5)
    sideways = Entry("g", "n", Path(), Path(), pose=pose(5.0, np.array([0.1, -0.8, 0.0])))
    assert two_view_metrics(found, sideways, SIZE, SIZE)["error"] > 80
    # The camera matrices are those of the files, which are larger than 1024 pixels.
    doubled = Pose(*(np.diag([2.0, 2.0, 1.0]) @ K + [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]] for _ in range(2)), pose()[2])
    large = matches_of(2 * views() + 0.5)
    metrics = two_view_metrics(large, Entry("g", "n", Path(), Path(), pose=doubled), (960, 1280), (960, 1280))
    assert metrics["error"] < 0.5


def test_the_confident_matches_decide_and_at_least_the_best_thirty(plane: Entry) -> None:
    right, wrong = planar(), planar(50)
    both = np.vstack([np.hstack(m.numpy()[:2]) for m in (right, wrong, wrong)])
    for sure in (0.6, 0.4):  # above one half there are all of the right ones, or none: then the best thirty count
        confidence = np.repeat(np.float32([sure, 0.3, 0.3]), 200)
        confidence[30:200] -= 0.05 * (sure < 0.5)
        metrics = two_view_metrics(matches_of(both, confidence), plane, SIZE, SIZE)
        assert metrics["error"] < 0.01
    assert two_view_metrics(matches_of(both), plane, SIZE, SIZE)["error"] > 10  # all count


def test_matches_that_determine_nothing_are_worth_nothing(plane: Entry, scene: Entry) -> None:
    for entry in (plane, scene, Entry("g", "n", Path(), Path(), pose=pose())):
        metrics = two_view_metrics(planar()[:3], entry, SIZE, SIZE)
        assert math.isnan(metrics.pop("error")) and set(metrics.values()) == {0.0}


def mixed(root: Path) -> Path:
    """Write a manifest of a pair with a flow, one with a homography, one with points and one with a pose."""
    entry = json.loads(write_pairs(root, 1).read_text())[0]
    np.savetxt(root / "h.txt", np.array([[1, 0, FLOW[0]], [0, 1, FLOW[1]], [0, 0, 1]]))
    (root / "p.txt").write_text("10 10 16 6\n40 30 46 26\n\n# more\n60 20 66 16\n")
    cameras = {"K0": K.tolist(), "K1": K.tolist(), "T_0to1": np.eye(4).tolist()}
    truths = {"homography": "h.txt", "points": "p.txt", "pose": {**cameras, "T_0to1": pose().T_0to1.tolist()}}
    images = {name: entry[name] for name in ("image0", "image1")}
    return write_manifest(root, [entry, *({**images, "dataset": name, name: truths[name]} for name in truths)])


def test_pairs_of_all_kinds_are_measured_in_one_run(tmp_path: Path) -> None:
    dataset, matcher = Manifest(mixed(tmp_path)), Perfect()
    evaluation = evaluate(matcher, dataset)
    assert matcher.calls == 4 and evaluation.is_finished
    measured = [" ".join(sorted(pair.metrics)) for pair in evaluation.pairs]
    assert measured == ["all", "all two_view", "two_view", "two_view"]
    assert list(evaluation.two_view()) == ["homography", "points", "pose"]
    assert evaluation.means("homography")["acc@2"] == 100
    assert evaluation.means("homography", "two_view")["auc@5"] == pytest.approx(100, abs=0.1)
    evaluation.save(tmp_path / "e.json")
    assert "NaN" not in (tmp_path / "e.json").read_text()
    assert Evaluation.load(tmp_path / "e.json").to_json() == evaluation.to_json()
    assert (two_view_table(evaluation).row_count, two_view_pairs_table(evaluation).row_count) == (4, 3)
    assert list(two_view_table(evaluation).columns[0].cells)[-1] == "mean of 3 data sets"
    flow = evaluate_flow(Perfect().flow, dataset)  # needs pairs whose motion is known
    assert [pair.index for pair in flow.pairs] == [0, 1] and flow.unknown == 2 and not flow.two_view()


def test_an_unreadable_truth_is_an_error_and_not_a_failed_pair(tmp_path: Path) -> None:
    dataset = Manifest(mixed(tmp_path))
    for name, content in (("p.txt", "1 2 3\n"), ("p.txt", ""), ("p.txt", "1 2 3 nan\n"), ("p.txt", "a b c d\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DeepMatchingError, match=rf"^Pair 3 of 4 .*{name}'"):
            evaluate(Perfect(), dataset)


def test_the_bootstrap_interval_of_the_mean_of_means() -> None:
    generator = np.random.default_rng(1)
    groups = [generator.normal(mean, 10, 400) for mean in (20, 60)]
    low, high = bootstrap_interval(groups)
    assert low < np.mean([values.mean() for values in groups]) < high
    assert high - low == pytest.approx(2 * 1.96 * 10 / np.sqrt(800), rel=0.15)
    assert bootstrap_interval([np.array([7.0])]) == (7.0, 7.0)
    assert bootstrap_interval(groups) == (low, high)


def test_methods_with_a_match_for_every_pixel_are_thinned(plane: Entry) -> None:
    class Counting(Matches):
        def homography(self, threshold: float = 3.0) -> object:  # type: ignore[override]
            counts.append(len(self))
            return super().homography(threshold)

    counts: list[int] = []
    start = torch.cartesian_prod(torch.arange(640.0), torch.arange(480.0))
    found: Tensor = start + torch.tensor([20.0, 10.0])
    assert two_view_metrics(Counting(start, found, torch.ones(len(start))), plane, SIZE, SIZE)["error"] < 0.01
    assert 15_000 < counts[0] <= 20_000
