"""Which pairs are matched, and in which order."""

from functools import lru_cache
from itertools import chain, combinations, pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from deepmatching.bulk_matching.pairs import (
    BLOCK,
    exhaustive_pairs,
    list_images,
    order_by_image,
    read_pairs,
    retrieved_pairs,
    sequential_pairs,
)
from deepmatching.errors import DeepMatchingError

NAMES = ["left side/grey.png", "photo 1.png", "photo 2.jpg", "photo_10.png", "wide.png"]


def test_images_in_sub_folders_are_listed_in_natural_order(photos: Path) -> None:
    (photos / "notes.txt").write_text("no image")
    (photos / ".hidden.png").write_bytes(b"")
    assert list_images(photos) == NAMES


def test_the_pictures_of_a_run_inside_the_folder_are_not_images(photos: Path) -> None:
    for folder in ("shards", "flow"):
        (photos / "run" / folder).mkdir(parents=True)
    (photos / "run" / "run.json").write_text("{}")
    (photos / "run" / "flow" / "photo 1.png").write_bytes(b"")
    assert list_images(photos) == NAMES
    assert list_images(photos / "run") == ["flow/photo 1.png"]  # what the user names counts


def test_exhaustive_is_every_pair_once_and_sequential_every_image_with_those_that_follow_it(photos: Path) -> None:
    assert exhaustive_pairs(photos) == list(combinations(NAMES, 2))
    assert sequential_pairs(photos, 1) == list(pairwise(NAMES))
    assert len(sequential_pairs(photos, 3)) == 4 + 3 + 2


def test_a_pairs_file_may_have_spaces_in_names_scores_comments_and_both_directions(photos: Path) -> None:
    (photos.parent / "pairs.txt").write_text(
        "# query image\nphoto_10.png wide.png 0.93\nphoto 1.png photo 2.jpg\nphoto 2.jpg\tphoto 1.png\n"
        "left side/grey.png\tnot there.png\nwide.png wide.png\n\nmissing.png wide.png\n"
    )
    assert read_pairs(photos.parent / "pairs.txt", photos) == [
        *(("photo_10.png", "wide.png"), ("photo 1.png", "photo 2.jpg")),
        *(("left side/grey.png", "not there.png"), ("missing.png", "wide.png")),
    ]


def test_a_line_that_names_no_two_images_is_refused(photos: Path) -> None:
    for line in ("alone.png", "three words here"):
        (photos.parent / "pairs.txt").write_text(f"photo_10.png wide.png\n{line}\n")
        with pytest.raises(DeepMatchingError, match=r"Line 2 of .* does not name two images"):
            read_pairs(photos.parent / "pairs.txt", photos)
    (photos.parent / "pairs.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DeepMatchingError, match="not text in UTF-8"):
        read_pairs(photos.parent / "pairs.txt", photos)
    with pytest.raises(DeepMatchingError, match="at least two images"):
        exhaustive_pairs(photos / "left side")


def test_retrieval_takes_the_first_lines_of_each_image(photos: Path) -> None:
    lines = [f"wide.png\t{name}" for name in NAMES[:4]] + ["photo_10.png\twide.png"]
    (photos.parent / "retrieval.txt").write_text("\n".join(lines))
    found = retrieved_pairs(photos.parent / "retrieval.txt", photos, 2)
    assert found == [("wide.png", NAMES[0]), ("wide.png", NAMES[1]), ("photo_10.png", "wide.png")]


def test_retrieval_takes_the_images_with_the_most_similar_global_descriptors(photos: Path) -> None:
    angles = np.array([0.0, 0.1, 0.3, 0.7, 1.5])
    with h5py.File(photos.parent / "global.h5", "w") as file:
        for name, angle in zip(NAMES, angles, strict=True):
            file.create_dataset(f"{name}/global_descriptor", data=np.array([np.cos(angle), np.sin(angle)], np.float32))
    found = retrieved_pairs(photos.parent / "global.h5", photos, 1)
    expected = set()
    for i, angle in enumerate(angles):
        distance = np.abs(angles - angle)
        distance[i] = np.inf
        expected.add(frozenset((NAMES[i], NAMES[int(distance.argmin())])))
    assert {frozenset(pair) for pair in found} == expected
    with h5py.File(photos.parent / "global.h5", "a") as file:
        del file[NAMES[2]]
    with pytest.raises(DeepMatchingError, match="no global_descriptor of 1 image,"):
        retrieved_pairs(photos.parent / "global.h5", photos, 1)


def test_the_order_by_image_describes_each_image_a_few_times_only() -> None:
    names = [f"{n}.png" for n in range(4 * BLOCK)]
    pairs = list(combinations(names, 2))
    ordered = order_by_image([pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))])
    assert sorted(ordered) == sorted(pairs)
    describe = lru_cache(2 * BLOCK)(lambda name: name)  # what memory holds
    for name in chain.from_iterable(ordered):
        describe(name)
    assert describe.cache_info().misses <= len(names) + len(pairs) * 1.1 / BLOCK
