"""Crops and flips keep the images and their ground truth together."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.data.datasets import Pair
from deepmatching.data.datasets.pairs import crop, flip, random_crop, random_flip


def random_pair(seed: int, size0: tuple[int, int], size1: tuple[int, int]) -> Pair:
    """Every pixel of image 0 is copied to the pixel of image 1 that its flow points at, unless it is occluded."""
    rng = np.random.default_rng(seed)
    image0, image1 = rng.random((3, *size0), np.float32), rng.random((3, *size1), np.float32)
    flow, occluded = np.full((*size0, 2), np.nan, np.float32), np.ones(size0, bool)
    targets = rng.permutation(size1[0] * size1[1])
    for index, target in zip(rng.permutation(size0[0] * size0[1]), targets, strict=False):
        (i, j), (k, l) = divmod(index, size0[1]), divmod(target, size1[1])
        flow[i, j] = l - j, k - i
        occluded[i, j] = rng.random() < 0.2
        if not occluded[i, j]:
            image1[:, k, l] = image0[:, i, j]
    return Pair(*(torch.from_numpy(a) for a in (image0, image1, flow, occluded)), "random")


def check(pair: Pair) -> int:
    """Assert that visible pixels are found where the flow points; returns their number."""
    i, j = (~pair.occluded & ~pair.flow.isnan().any(dim=-1)).nonzero().T
    l, k = (pair.flow[i, j] + torch.stack([j, i], dim=1)).long().T
    inside = (k >= 0) & (k < pair.image1.shape[1]) & (l >= 0) & (l < pair.image1.shape[2])
    assert torch.equal(pair.image1[:, k[inside], l[inside]], pair.image0[:, i[inside], j[inside]])
    return int(inside.sum())


sizes = st.tuples(st.integers(2, 7), st.integers(2, 7))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), size0=sizes, size1=sizes, axis=st.sampled_from([0, 1]))
def test_a_flipped_pair_is_a_pair(seed: int, size0: tuple[int, int], size1: tuple[int, int], axis: int) -> None:
    pair = random_pair(seed, size0, size1)
    flipped = flip(pair, axis)
    assert check(flipped) == check(pair)
    assert (flipped.image0 == pair.image0.flip(2 - axis)).all()
    again = flip(flipped, axis)
    for one, two in zip(again[:4], pair[:4], strict=True):
        assert torch.equal(one.nan_to_num(-99), two.nan_to_num(-99))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), size0=sizes, size1=sizes, data=st.data())
def test_a_crop_is_a_pair(seed: int, size0: tuple[int, int], size1: tuple[int, int], data: st.DataObject) -> None:
    pair = random_pair(seed, size0, size1)
    rows, columns = (data.draw(st.integers(1, min(sides))) for sides in zip(size0, size1, strict=True))
    size = (rows, columns)
    part = random_crop(pair, size, torch.Generator().manual_seed(seed))
    assert part.image0.shape == part.image1.shape == (3, *size)
    assert part.flow.shape == (*size, 2) and part.occluded.shape == size and part.name == "random"
    check(part)


def test_a_whole_crop_finds_all() -> None:
    pair = random_pair(3, (6, 5), (6, 5))
    assert check(crop(pair, (6, 5))) == check(pair) > 10


def test_the_generator_alone_determines_the_crop() -> None:
    pair = random_pair(1, (12, 14), (12, 14))
    torch.manual_seed(0)
    first = [random_crop(pair, (4, 5), torch.Generator().manual_seed(s)).image0 for s in (1, 1, 2)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    generator = torch.Generator().manual_seed(5)
    several = {random_crop(pair, (4, 5), generator).image0[0, 0, 0].item() for _ in range(40)}
    assert len(several) > 20  # all over the image


def test_flips_happen_as_often_as_asked() -> None:
    pair = random_pair(1, (4, 4), (4, 4))
    generator = torch.Generator().manual_seed(0)
    kinds = {"none": pair.image0, "x": pair.image0.flip(2), "y": pair.image0.flip(1), "xy": pair.image0.flip(1, 2)}
    counts = dict.fromkeys(kinds, 0)
    for _ in range(400):
        flipped = random_flip(pair, generator, horizontal=0.5, vertical=0.25).image0
        counts[next(name for name, image in kinds.items() if torch.equal(image, flipped))] += 1
    assert abs(counts["x"] + counts["xy"] - 200) < 50 and abs(counts["y"] + counts["xy"] - 100) < 40
    assert all(torch.equal(random_flip(pair, generator, 0.0, 0.0).image0, pair.image0) for _ in range(5))
