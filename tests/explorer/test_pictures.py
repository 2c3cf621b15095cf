"""Uploads, samples and pairs."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.explorer.pictures import MAX_PICTURES, LRUCache, Pictures, Unknown
from helpers.explorer import png


def test_an_upload_is_reduced_when_it_is_shown_and_remembers_its_size(pictures: Pictures) -> None:
    data = png(np.full((96, 128, 3), 7, np.uint8))
    first, second = pictures.upload("a.png", data), pictures.upload("b.png", data)
    pair = pictures.pair_of_uploads(first.id, second.id)
    assert (pair.names, pair.sizes, pair.originals) == (("a.png", "b.png"), ((48, 64),) * 2, ((96, 128),) * 2)
    assert pictures.pair(pair.id) is pair
    assert pair.encoded(0).startswith(b"\x89PNG") and pair.encoded(1, ".jpg").startswith(b"\xff\xd8")


def test_a_pair_can_be_opened_at_a_smaller_size_but_not_at_a_larger_one(pictures: Pictures) -> None:
    small = pictures.pair("sample-bunny@32")
    assert (small.id, small.sizes, small.originals) == ("sample-bunny@32", ((24, 32),) * 2, ((480, 640),) * 2)
    assert pictures.pair(small.id) is small and pictures.pair("sample-bunny").sizes == ((48, 64),) * 2
    for size in ("65", "15", "9" * 5000, "-32", "32@32", "wide"):
        with pytest.raises(DeepMatchingError, match="largest size"):
            pictures.pair(f"sample-bunny@{size}")
    with pytest.raises(Unknown, match="pair"):
        pictures.pair("sample-cat@32")


def test_a_pair_can_be_opened_with_masks_whose_pixels_are_dimmed(pictures: Pictures) -> None:
    image = pictures.upload("a.png", png(np.full((96, 128, 3), 200, np.uint8)))
    mask = np.full((96, 128, 3), 255, np.uint8)
    mask[:33] = 0
    upload = pictures.upload("mask.png", png(mask))
    whole = pictures.pair_of_uploads(image.id, image.id)
    pair = pictures.pair(f"{whole.id}+{upload.id}.")
    assert (pair.mask_names, pair.masks[1], whole.has_masks) == (("mask.png", ""), None, False)
    assert pair.masks[0] is not None and pair.has_masks and pictures.pair(pair.id) is pair
    for same, rows, first in ((pair, 48, 17), (pictures.pair(f"{pair.id}@32"), 24, 9)):
        assert same.masks[0] is not None and same.masks[0].shape[0] == rows
        assert same.masks[0][first:].all() and not same.masks[0][:first].any()  # no pixel that is masked in part
        assert same.shown[0][:, :first].max() < 0.5 < same.shown[0][:, first:].min()
        assert [own.shape[0] for own in same.matched] == [4, 3]
    assert torch.equal(pair.shown[1], whole.images[1])


def test_a_mask_of_another_size_is_reported_with_its_own_name(pictures: Pictures) -> None:
    small, large = (pictures.upload(f"{n}.png", png(np.zeros((n, n, 3), np.uint8))) for n in (8, 16))
    pair = pictures.pair_of_uploads(large.id, large.id)
    with pytest.raises(DeepMatchingError, match=r"second mask \('8\.png'\) has 8x8 pixels.*16x16"):
        pictures.pair(f"{pair.id}+.{small.id}")
    for unknown in ("../x.", "given.", "none.none"):
        with pytest.raises(Unknown):
            pictures.pair(f"{pair.id}+{unknown}")


def test_the_masks_of_the_command_are_those_of_its_pair(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(np.full((32, 32, 3), 255, np.uint8)))
    ids = set[str | None]()
    for masks in ((None, None), (str(path), None), (None, str(path)), ("0,0 9,0 9,9", None)):
        store = Pictures(given=(path, path), given_masks=masks)
        assert store.given_id is not None
        pair = store.pair(store.given_id)
        assert [mask is not None for mask in pair.masks] == [mask is not None for mask in masks]
        assert pair.mask_names == tuple("" if mask is None else mask.split("/")[-1] for mask in masks)
        assert not store.pair(store.given_id.split("+")[0]).has_masks  # the page can take them away
        ids.add(store.given_id)
        store.close()
    assert len(ids) == 4 and pair.masks[0] is not None and pair.masks[0].sum() == 55


@pytest.mark.parametrize("name", ["../../etc/passwd", "C:\\a\\b.png", "", "...", "a/b\nc<script>.png", "x" * 300])
def test_no_name_of_an_upload_leaves_the_private_folder(pictures: Pictures, name: str) -> None:
    picture = pictures.upload(name, png(np.zeros((8, 8, 3), np.uint8)))
    assert pictures.folder in picture.path.resolve().parents
    assert picture.name and len(picture.name) <= 80 and not set(picture.name) & set("/\\<>\n")


@pytest.mark.parametrize("data", [b"", b"not a picture", png(np.zeros((8, 8, 3), np.uint8))[:-20]])
def test_a_bad_upload_is_reported_with_its_own_name_and_leaves_nothing(pictures: Pictures, data: bytes) -> None:
    with pytest.raises(DeepMatchingError, match=r"'holiday\.png'") as caught:
        pictures.upload("holiday.png", data)
    assert str(pictures.folder) not in str(caught.value)
    assert list(pictures.folder.iterdir()) == []


def test_the_folder_of_uploads_is_private_and_goes_when_the_explorer_ends() -> None:
    store = Pictures()
    store.upload("a.png", png(np.zeros((8, 8, 3), np.uint8)))
    if os.name == "posix":
        assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    store.close()
    assert not store.folder.exists()


def test_old_uploads_make_room_for_new_ones(pictures: Pictures) -> None:
    data = png(np.zeros((8, 8, 3), np.uint8))
    ids = [pictures.upload("a.png", data).id for _ in range(MAX_PICTURES + 3)]
    assert len(list(pictures.folder.iterdir())) == MAX_PICTURES
    with pytest.raises(Unknown):
        pictures.pair_of_uploads(ids[0], ids[-1])


def test_the_sample_is_always_there_and_an_unknown_pair_is_reported(pictures: Pictures) -> None:
    pair = pictures.pair("sample-bunny")
    assert pair.originals == ((480, 640), (480, 640)) and "CC BY" in pair.credit
    for id in ("", "sample-", "sample-cat", "bunny", "given-0", "../x"):
        with pytest.raises(Unknown, match="pair"):
            pictures.pair(id)


def test_the_pair_of_the_command_line_has_the_same_id_in_the_next_run(tmp_path: Path) -> None:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path in paths:
        path.write_bytes(png(np.zeros((16, 24, 3), np.uint8)))
    ids = []
    for given in (paths, paths, paths[::-1]):
        store = Pictures(64, given=(given[0], given[1]))
        assert store.given_id is not None
        assert store.pair(store.given_id).names == (given[0].name, given[1].name)
        ids.append(store.given_id)
        store.close()
    assert ids[0] == ids[1] != ids[2]


def test_what_was_asked_for_last_is_kept() -> None:
    kept: LRUCache[int] = LRUCache(2, "number")
    kept.add("a", 1)
    kept.add("b", 2)
    assert kept["a"] == 1
    assert kept.add("c", 3) == [2]
    assert [kept.find(name) for name in "abc"] == [1, None, 3]
