"""Shards: the matches are those of the matcher, each image is described once, failures are recorded."""

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepmatching.bulk_matching.engine import ShardMatcher, flow_file
from deepmatching.bulk_matching.pairs import exhaustive_pairs, list_images
from deepmatching.bulk_matching.storage import MatchedPair, read_shard, shard_file, write_shard
from deepmatching.io.flow import read_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.settings import Settings
from helpers.bulk_runs import matched
from helpers.fake_datasets import write_image
from helpers.synthetic_pictures import draw_photo


@pytest.fixture(scope="module")
def matcher() -> DeepMatcher:
    return DeepMatcher.from_pretrained("hog", radius=32, device="cpu")


def assert_equal(found: Matches, expected: Matches) -> None:
    assert (found.size0, found.size1) == (expected.size0, expected.size1)
    for name in ("keypoints0", "keypoints1", "scores"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("settings", [{}, {"max_size": 40}])
def test_the_matches_are_those_of_the_matcher(photos: Path, settings: dict[str, int]) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=32, device="cpu", **settings)
    pairs = exhaustive_pairs(photos)
    shard = ShardMatcher(matcher, photos, photos).start(pairs)()
    assert [pair.names for pair in shard] == pairs
    assert sum(len(pair.matches) for pair in shard) > 10 * len(pairs)
    for pair in shard:
        assert_equal(pair.matches, matcher.match(*(photos / name for name in pair.names)))
        assert pair.orientations == tuple(6 if name == "photo_10.png" else 1 for name in pair.names)


def test_matches_do_not_depend_on_the_batch_or_on_the_memory(photos: Path, matcher: DeepMatcher) -> None:
    pairs = exhaustive_pairs(photos)
    alone = ShardMatcher(matcher, photos, photos).start(pairs)()
    for other in (ShardMatcher(matcher, photos, photos, batch_size=4), ShardMatcher(matcher, photos, photos, memory=0)):
        for expected, found in zip(alone, other.start(pairs)(), strict=True):
            assert_equal(found.matches, expected.matches)


def test_each_image_is_described_once_if_memory_allows(photos: Path, matcher: DeepMatcher) -> None:
    shards = ShardMatcher(matcher, photos, photos)
    pairs = exhaustive_pairs(photos)
    shards.start(pairs[:4], pairs[4:])()
    shards.start(pairs[4:])()
    assert shards.images.described == 5
    frugal = ShardMatcher(matcher, photos, photos, memory=0)
    frugal.start(pairs)()
    assert 5 < frugal.images.described < 2 * len(pairs)


def test_unreadable_images_fail_their_pairs_alone_with_the_reason(photos: Path, matcher: DeepMatcher) -> None:
    (photos / "text.png").write_text("not a picture")
    names = [*list_images(photos)[:2], "text.png", "missing.png"]
    pairs = list(combinations(names, 2))
    shard = ShardMatcher(matcher, photos, photos).start(pairs)()
    failed = {pair.names: pair.failure for pair in shard if pair.failure}
    assert set(failed) == set(pairs[1:])
    assert "cannot be decoded" in failed[names[0], "text.png"]
    assert "There is no image" in failed[names[0], "missing.png"]
    assert len(shard[0].matches) > 0


def test_a_pair_that_needs_too_much_memory_fails_and_the_others_go_on(photos: Path) -> None:
    tight = DeepMatcher.from_pretrained("hog", radius="full", device="cpu", memory=1)
    shard = ShardMatcher(tight, photos, photos).start(exhaustive_pairs(photos)[:2])()
    assert all("of memory" in pair.failure for pair in shard)


def test_flow_is_that_of_the_matcher(photos: Path, tmp_path: Path) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=32, device="cpu")
    pairs = [("photo 1.png", "left side/grey.png"), ("photo 1.png", "photo 2.jpg"), ("photo 1.png", "wide.png")]
    shard = ShardMatcher(matcher, photos, tmp_path, flow=True).start(pairs)()
    assert not any(pair.failure for pair in shard)
    for pair in pairs:
        written = read_flow(flow_file(tmp_path / "flow", pair))
        expected = matcher.flow(*(photos / name for name in pair)).flow
        torch.testing.assert_close(torch.from_numpy(written), torch.from_numpy(expected))


def test_every_pair_has_a_flow_file_of_its_own(tmp_path: Path) -> None:
    names = ("a/b.jpg", "a-b.jpg", "a%2Fb.jpg", "../b.jpg", "c.jpg")
    files = [flow_file(tmp_path, pair) for pair in product(names, names)]
    assert len(set(files)) == len(files) and {file.parent.parent for file in files} == {tmp_path}


@pytest.mark.slow
def test_a_search_keeps_the_matches_of_high_confidence_and_writes_the_flow_of_the_matcher(tmp_path: Path) -> None:
    matcher = DeepMatcher.from_pretrained(radius=32, device="cpu", rotations=(0, 180))
    picture, pair = draw_photo(0, 96, 128), ("upright.png", "turned.png")
    turned = np.rot90(picture, 2).copy()
    turned[:48, :64] = draw_photo(1, 48, 64)  # matches of what lies behind are uncertain
    for name, image in zip(pair, (picture, turned), strict=True):
        write_image(tmp_path / name, image)
    shard = ShardMatcher(matcher, tmp_path, tmp_path, flow=True, min_confidence=0.95).start([pair])()
    expected = matcher.match(*(tmp_path / name for name in pair))
    assert_equal(shard[0].matches, expected.filter(0.95))
    assert 0 < len(expected.filter(0.95)) < len(expected)
    written = torch.from_numpy(read_flow(flow_file(tmp_path / "flow", pair)))
    torch.testing.assert_close(written, torch.from_numpy(matcher.flow(*(tmp_path / name for name in pair)).flow))


@pytest.mark.slow
def test_a_failed_match_is_searched_as_by_the_matcher_unless_that_is_forbidden(tmp_path: Path) -> None:
    picture, names = draw_photo(0, 192, 192), ("upright.png", "turned.png", "other.png")
    pictures = (picture, np.rot90(picture).copy(), draw_photo(1, 192, 192))
    for name, image in zip(names, pictures, strict=True):
        write_image(tmp_path / name, image)
    (tmp_path / "shards").mkdir()
    pairs, matcher = [names[:2], names[::2]], DeepMatcher.from_pretrained(device="cpu")
    shards = ShardMatcher(matcher, tmp_path, tmp_path, flow=True, min_confidence=0.9)
    report, shard = shards.submit(0, pairs).result(), read_shard(shard_file(tmp_path, 0), pairs)
    assert (report.searched, report.doubtful) == (1, 1)
    for pair, found in zip(pairs, shard, strict=True):
        expected = matcher.match(*(tmp_path / name for name in pair))
        assert_equal(found.matches, expected.filter(0.9))
    written, expected_flow = read_flow(flow_file(tmp_path / "flow", pairs[0])), matcher.flow(picture, pictures[1]).flow
    torch.testing.assert_close(torch.from_numpy(written), torch.from_numpy(expected_flow))
    assert shard[0].matches.transformation is not None and len(shard[0].matches) > 100
    forbidden = DeepMatcher(matcher.network, Settings(device="cpu", auto=False))
    plain = ShardMatcher(forbidden, tmp_path, tmp_path).submit(1, pairs).result()
    assert (plain.doubtful, plain.searched) == (2, 0)


def test_a_search_is_that_of_the_matcher_and_shards_keep_its_transformations(photos: Path, tmp_path: Path) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=32, device="cpu", rotations=(0, 180))
    pairs = [*exhaustive_pairs(photos)[:2], ("photo 1.png", "missing.png")]
    shard = ShardMatcher(matcher, photos, photos).start(pairs)()
    write_shard(tmp_path / "shard.npz", shard)
    read = read_shard(tmp_path / "shard.npz", pairs)
    assert read[2].failure and read[2].matches.transformation is None
    for pair in read[:2]:
        expected = matcher.match(*(photos / name for name in pair.names))
        assert_equal(pair.matches, expected)
        for name in ("transformation", "transformations"):
            assert torch.equal(getattr(pair.matches, name), getattr(expected, name))


def test_shards_keep_pairs_with_and_without_a_search(tmp_path: Path) -> None:
    plain = matched("a.png", "b.png", [[1, 2], [3, 4]], [[5, 6], [7, 8]], [1, 2])
    numbers, table = torch.tensor([1, 0]), torch.eye(3)[None].repeat(2, 1, 1)
    found = replace(plain.matches, transformation=numbers, transformations=table)
    searched = MatchedPair(("a.png", "c.png"), found)
    nothing = MatchedPair(("b.png", "c.png"), found[torch.zeros(2, dtype=torch.bool)])
    failed = MatchedPair(("c.png", "d.png"), NO_MATCHES, failure="It cannot be read.")
    for pairs in ([plain, searched, nothing, failed], [nothing, plain], [failed, searched, plain]):
        write_shard(tmp_path / "shard.npz", pairs)
        read = read_shard(tmp_path / "shard.npz", [pair.names for pair in pairs])
        assert [pair.failure for pair in read] == [pair.failure for pair in pairs]
        for pair, expected in zip(read, pairs, strict=True):
            assert torch.equal(pair.matches.keypoints1, expected.matches.keypoints1)
            for name in ("transformation", "transformations"):
                now, before = getattr(pair.matches, name), getattr(expected.matches, name)
                assert now is before is None or torch.equal(now, before)


@pytest.mark.parametrize("settings", [{}, {"max_size": 40}, {"rotations": (0, 90)}], ids=str)
def test_masks_are_those_of_the_matcher(photos: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=32, device="cpu", **settings)
    usable = {}
    for name in ("photo 1.png", "photo_10.png", "left side/grey.png"):
        usable[name] = np.ones((48, 64), np.uint8)
        usable[name][:, 40:] = usable[name][:9] = 0
        stored = np.rot90(usable[name]) if name == "photo_10.png" else usable[name]  # as its file is turned
        write_image(tmp_path / "masks" / f"{name}.png", stored * 255)
    shard = ShardMatcher(matcher, photos, photos, masks=tmp_path / "masks", flow=not settings)
    pairs = exhaustive_pairs(photos)
    for pair in shard.start(pairs)():
        masks = {f"mask{n}": usable.get(name) for n, name in enumerate(pair.names)}
        assert_equal(pair.matches, matcher.match(*(photos / name for name in pair.names), **masks))
        if not settings:
            flow = matcher.for_flow(32).flow(*(photos / name for name in pair.names), **masks)
            assert np.array_equal(read_flow(flow_file(photos / "flow", pair.names)), flow.flow)


def test_alpha_is_that_of_the_matcher_and_adds_to_masks(photos: Path, tmp_path: Path) -> None:
    matcher = DeepMatcher.from_pretrained("hog", radius=32, device="cpu", use_alpha=True)
    alpha, mask = np.full((2, 48, 64), 255, np.uint8)
    alpha[:, 40:] = mask[:9] = 0
    Image.fromarray(np.dstack([draw_photo(0, 48, 64), alpha])).save(photos / "a.png")
    write_image(tmp_path / "masks" / "a.png.png", mask)
    pair = "a.png", "photo 1.png"
    for folder, mask0 in ((None, None), (tmp_path / "masks", mask)):
        found = ShardMatcher(matcher, photos, photos, masks=folder).start([pair])()
        assert_equal(found[0].matches, matcher.match(*(photos / name for name in pair), mask0=mask0))
        assert 0 < found[0].matches.keypoints0[:, 0].max() < 40


def test_a_mask_of_another_size_fails_the_pairs_of_its_image(
    photos: Path, tmp_path: Path, matcher: DeepMatcher
) -> None:
    write_image(tmp_path / "masks" / "wide.png.png", np.ones((48, 64), np.uint8))
    found = ShardMatcher(matcher, photos, photos, masks=tmp_path / "masks").start(exhaustive_pairs(photos))()
    assert all(("mask" in pair.failure) == ("wide.png" in pair.names) for pair in found)
