"""Files for hloc, read as hloc's documented functions read them."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from deepmatching.bulk_matching import MatchedPair
from deepmatching.errors import DeepMatchingError
from deepmatching.io.image_files import to_stored
from deepmatching.matches import NO_MATCHES
from deepmatching.reconstruction.hloc import write_hloc
from deepmatching.reconstruction.keypoints import SharedKeypoints
from helpers.bulk_runs import MakeRun, matched


class Reader:
    """Reads both files in the steps of hloc's documented ``get_keypoints``, ``find_pair`` and ``get_matches``."""

    def __init__(self, folder: Path) -> None:
        self.features, self.matches = folder / "feats.h5", folder / "matches.h5"

    def keypoints(self, name: str) -> tuple[np.ndarray, float | None]:
        with h5py.File(self.features, "r", libver="latest") as file:
            stored = file[name]["keypoints"]
            return stored[()], stored.attrs.get("uncertainty")

    def names(self) -> set[str]:
        """Return the groups that have a dataset, as ``list_h5_names`` finds them."""
        found = set()
        with h5py.File(self.features, "r", libver="latest") as file:
            file.visititems(
                lambda _, it: found.add(it.parent.name.strip("/")) if isinstance(it, h5py.Dataset) else None
            )
        return found

    def pairs(self, name0: str, name1: str) -> tuple[np.ndarray, np.ndarray]:
        """Return matches (N, 2) and their scores. hloc looks for both orders of names, with ``/`` and ``_``."""
        first, second = (name.replace("/", "-") for name in (name0, name1))
        candidates = [(f"{first}/{second}", False), (f"{second}/{first}", True)]
        candidates += [(f"{first}_{second}", False), (f"{second}_{first}", True)]
        with h5py.File(self.matches, "r", libver="latest") as file:
            group, is_reversed = next((file[key], turned) for key, turned in candidates if key in file)
            matches0, scores0 = group["matches0"][()], group["matching_scores0"][()]
        assert matches0.dtype == np.int32 and (scores0[matches0 < 0] == 0).all()
        kept = np.flatnonzero(matches0 != -1)
        matches = np.stack([kept, matches0[kept]], axis=-1)
        return matches[:, ::-1] if is_reversed else matches, scores0[kept]


def test_hloc_finds_keypoints_and_pairs_in_both_orders_whatever_the_names(make_run: MakeRun, tmp_path: Path) -> None:
    names = ["left side/a b.jpg", "left side/deeper/c.jpg", "d.JPG"]
    generator = np.random.default_rng(0)
    starts = np.stack(np.meshgrid(np.arange(8, 88, 8), np.arange(8, 56, 8)), axis=-1).reshape(-1, 2) - 0.5
    made = {}
    for first, second in ((0, 1), (2, 1)):
        ends = starts + generator.uniform(-3, 3, starts.shape)
        confidence = generator.uniform(0, 1, len(starts))
        pair = matched(names[first], names[second], starts, ends, 3 * confidence, confidence)
        made[pair.names] = pair
    shared = SharedKeypoints(make_run(list(made.values()), max_size=48), cell=0.01, is_refined=False)
    assert write_hloc(shared, tmp_path / "feats.h5", tmp_path / "matches.h5") == 2 * len(starts)
    reader = Reader(tmp_path)
    assert reader.names() == set(names)
    for pair, expected in ((names, made.matches) for names, made in made.items()):
        matches, scores = reader.pairs(*pair)
        assert matches.shape == (len(starts), 2) and scores.dtype == np.float16 and scores.shape == (len(starts),)
        points = [reader.keypoints(name) for name in pair]
        assert points[0][0].dtype == np.float32
        assert [uncertainty for _, uncertainty in points] == [2.0, 2.0]  # matched at half the size
        rows = np.column_stack([points[0][0][matches[:, 0]], points[1][0][matches[:, 1]], scores])
        keypoints0, keypoints1, _ = expected.numpy()
        wanted = np.column_stack([keypoints0, keypoints1, expected.certainty.numpy()])
        order, other = (np.lexsort(table.T[:4]) for table in (rows, wanted))
        np.testing.assert_allclose(rows[order], wanted[other], atol=1e-3)  # half precision of the scores
        turned, _ = reader.pairs(*reversed(pair))
        np.testing.assert_array_equal(turned[:, ::-1], matches)


def test_hloc_finds_pairs_without_matches(make_run: MakeRun, three_views: list[MatchedPair], tmp_path: Path) -> None:
    nothing = np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)
    alone = [
        matched("sky/1.png", "0.png", *nothing),
        matched("sky/1.png", "sky/2.png", *nothing),
        MatchedPair(("1.png", "broken.png"), NO_MATCHES, failure="It cannot be read."),
    ]
    write_hloc(SharedKeypoints(make_run([*three_views, *alone])), tmp_path / "feats.h5", tmp_path / "matches.h5")
    reader = Reader(tmp_path)
    assert reader.names() == {"0.png", "1.png", "2.png", "sky/1.png", "sky/2.png", "broken.png"}
    assert len(reader.keypoints("0.png")[0])
    assert reader.keypoints("sky/2.png")[0].shape == reader.keypoints("broken.png")[0].shape == (0, 2)
    for pair in alone:
        for names in (pair.names, pair.names[::-1]):
            matches, scores = reader.pairs(*names)
            assert matches.shape == (0, 2) and scores.shape == (0,)


def test_names_that_hloc_cannot_tell_apart_are_one_sentence(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run([matched(name, "c.png", [[10, 20]], [[10, 20]], [1]) for name in ("a/b.png", "a-b.png")])
    with pytest.raises(DeepMatchingError, match=r"the images 'a-b\.png' and 'a/b\.png' apart"):
        write_hloc(SharedKeypoints(run), tmp_path / "feats.h5", tmp_path / "matches.h5")
    assert list(tmp_path.glob("*.h5")) == []


def test_keypoints_are_in_the_stored_pixels_of_turned_photographs(make_run: MakeRun, tmp_path: Path) -> None:
    points = np.float32([[10.0, 20.0], [50.0, 30.0]])
    run = make_run([matched("sub folder/a.jpg", "b.jpg", points, points, [2, 1], turned=6)])
    write_hloc(SharedKeypoints(run), tmp_path / "feats.h5", tmp_path / "matches.h5")
    with h5py.File(tmp_path / "feats.h5") as features:
        group = features["sub folder/a.jpg"]
        np.testing.assert_allclose(group["keypoints"][()], to_stored(points, (64, 96), 6))
        assert group["image_size"][()].tolist() == [64, 96]
    with h5py.File(tmp_path / "matches.h5") as file:
        assert file["sub folder-a.jpg/b.jpg/matches0"][()].tolist() == [0, 1]
