"""What the matching says about its matches."""

import math
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import target_indices
from deepmatching.models import build_network
from deepmatching.network.inference import Decoding
from deepmatching.network.operators import evidence
from deepmatching.network.operators.decoding import Decoded
from deepmatching.network.operators.evidence import (
    channels_of_evidence,
    compare_contexts,
    gather_evidence,
    sample,
    squash,
    windows,
)
from deepmatching.network.operators.subpixel import correlation_around, scores_around


def matched(
    name: str,
    seed: int = 0,
    size: tuple[int, int] = (48, 64),
    radius: int | None = 16,
    size1: tuple[int, int] | None = None,
):
    """Return matches of noise, and all that evidence is gathered from."""
    torch.manual_seed(seed)
    network = build_network(name, radius=radius, levels=2)
    images = [torch.rand(2, 3, *side) for side in (size, size1 or size)]
    geometry = network.geometry(size, size1 or size)
    with torch.no_grad():
        cells0, cells1 = network.describe(*images, geometry)
        decoded = network.decode_descriptors(cells0, cells1, geometry, Decoding())
    patch = network.descriptor.patch
    around = scores_around(decoded, cells0, cells1, geometry, patch, 1.4)
    return decoded, around, cells0, cells1, geometry, patch


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["hog", "compact", "vgg"]), st.integers(3, 9), st.integers(3, 9), st.sampled_from([4, 16, None]),
    st.integers(0, 99),
)  # fmt: skip
def test_evidence_is_finite_and_bounded_for_every_size(
    name: str, rows: int, columns: int, radius: int | None, seed: int
) -> None:
    decoded, around, cells0, cells1, geometry, patch = matched(name, seed, (8 * rows, 8 * columns), radius)
    evidence = gather_evidence(decoded, around, cells0, cells1, geometry, patch)
    assert evidence.shape == (2, channels_of_evidence(patch), rows, columns)
    assert torch.isfinite(evidence).all() and evidence.abs().max() < 20


def test_points_that_no_path_reaches_count_as_unmoved_with_no_score() -> None:
    decoded, around, cells0, cells1, geometry, patch = matched("compact")
    scores = decoded.scores.clone()
    scores[0, 2, 3] = -math.inf
    evidence = gather_evidence(decoded._replace(scores=scores), around, cells0, cells1, geometry, patch)
    assert torch.isfinite(evidence).all()
    assert evidence[0, [0, 2], 2, 3].tolist() == [0, 0]  # score, and whether a path reaches the point
    assert evidence[0, 11:13, 2, 3].tolist() == [0, 0]  # displacement


def test_the_parts_of_the_similarity_sum_to_the_correlation_at_the_match() -> None:
    for name in ("compact", "vgg", "hog"):
        decoded, around, cells0, cells1, geometry, patch = matched(name, seed=3)
        parts = gather_evidence(decoded, around, cells0, cells1, geometry, patch)[:, 72:]
        rows, columns = target_indices(decoded.cells, geometry)
        whole = correlation_around(cells0, cells1, rows, columns, geometry, patch)[..., 2, 2]
        inside = (rows >= patch // 2) & (columns >= patch // 2)  # the others are rectified
        inside &= (rows <= 24 - patch // 2) & (columns <= 32 - patch // 2)
        torch.testing.assert_close(parts.mean(1)[inside], whole[inside], atol=1e-5, rtol=1e-4)


def test_neighbours_and_claims_are_those_of_a_loop_over_points() -> None:
    decoded, around, cells0, cells1, geometry, patch = matched("compact", seed=5)
    evidence = gather_evidence(decoded, around, cells0, cells1, geometry, patch).permute(0, 2, 3, 1)
    moved = decoded.points1 - decoded.points0
    rows, columns = geometry.grid(0)
    side = geometry.alpha // geometry.gamma
    for b in range(2):
        owners = best_of_bins(decoded, geometry, b)
        for i, j in product(range(rows), range(columns)):
            own, score = moved[b, i, j], float(decoded.scores[b, i, j])
            steps = [step for step in product((-1, 0, 1), repeat=2) if step != (0, 0)]
            first = [moved[b, min(max(i + y, 0), rows - 1), min(max(j + x, 0), columns - 1)] - own for y, x in steps]
            second = [first[n] + first[7 - n] for n in range(4)]
            expected = squash(torch.cat([*first, *second]), 4.0)
            torch.testing.assert_close(evidence[b, i, j, 23:47], expected, atol=1e-5, rtol=1e-4)

            y, x = (int(t[b, i, j]) // side for t in target_indices(decoded.cells, geometry))
            k, l = owners[y, x]
            excess = 4 * (float(decoded.scores[b, k, l]) - score) / (geometry.L + 1)
            assert math.isclose(evidence[b, i, j, 4], excess, abs_tol=1e-5)
            difference = squash(moved[b, k, l] - own, 4.0)
            torch.testing.assert_close(evidence[b, i, j, 5:7], difference, atol=1e-5, rtol=1e-4)
            near = [owners[p] for p in owners if abs(p[0] - y) <= 1 and abs(p[1] - x) <= 1]
            excess = 4 * (max(float(decoded.scores[b][p]) for p in near) - score) / (geometry.L + 1)
            assert math.isclose(evidence[b, i, j, 7], excess, abs_tol=1e-5)


def best_of_bins(decoded: Decoded, geometry: Geometry, b: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the point with the best score in each bin of targets, the first of equals."""
    side = geometry.alpha // geometry.gamma
    owners: dict[tuple[int, int], tuple[int, int]] = {}
    y, x = target_indices(decoded.cells, geometry)
    for i, j in product(*map(range, decoded.scores.shape[1:])):
        place = (int(y[b, i, j]) // side, int(x[b, i, j]) // side)
        if place not in owners or decoded.scores[b, i, j] > decoded.scores[b][owners[place]]:
            owners[place] = (i, j)
    return owners


def test_lengths_are_squashed_without_changing_their_order() -> None:
    lengths: Tensor = torch.tensor([-1e6, -4.0, 0.0, 4.0, 1e6])
    torch.testing.assert_close(squash(lengths, 4.0), torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["hog", "compact", "vgg"])
@pytest.mark.parametrize(("size0", "size1"), [((40, 64), (40, 64)), ((32, 24), (48, 40))])
@pytest.mark.parametrize("radius", [10, None])
def test_the_kernel_agrees(
    name: str, size0: tuple[int, int], size1: tuple[int, int], radius: int | None, gpu: ModuleType, gpu_device: str,
) -> None:  # fmt: skip
    decoded, around, *cells, geometry, patch = matched(name, 2, size0, radius, size1)
    scores = decoded.scores.clone()
    scores[0, 1, 1:3] = -math.inf  # two points without a path, which claim the same bin
    scores[1] = (scores[1] * 4).round() / 4  # equal scores, in one bin and in bins beside each other
    decoded = decoded._replace(scores=scores)
    expected = gather_evidence.definition(decoded, around, *cells, geometry, patch)
    found = gathered_on(gpu, gpu_device, decoded, around, cells, geometry, patch)
    assert found.shape == expected.shape and found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, atol=2e-5, rtol=1e-4)


def gathered_on(gpu: ModuleType, device: str, decoded: Decoded, around: Tensor, cells: Any, *rest: Any) -> Tensor:
    there = Decoded._make(None if value is None else value.to(device) for value in decoded)
    return gpu.gather_evidence(there, around.to(device), *(c.to(device) for c in cells), *rest)


@pytest.mark.parametrize("channels", [3, 16, 24, 150])
def test_the_kernel_splits_any_number_of_channels(channels: int, gpu: ModuleType, gpu_device: str) -> None:
    decoded, around, _, _, geometry, _ = matched("compact")
    cells = torch.randn(2, 2, channels, 25, 33).transpose(3, 4).contiguous().transpose(3, 4)  # any strides
    expected = gather_evidence.definition(decoded, around, *cells, geometry, 1)
    found = gathered_on(gpu, gpu_device, decoded, around, cells, geometry, 1)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("channels", "side", "outputs"), [(64, 5, 32), (128, 4, 32), (9, 4, 20), (70, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("batches", [1, 2])
def test_the_kernel_of_windows_agrees(
    channels: int, side: int, outputs: int, dtype: torch.dtype, batches: int, gpu: ModuleType, gpu_device: str
) -> None:
    step = side - side % 2
    cells = [torch.randn(2, channels, 3 * step + side % 2, 5 * step + side % 2) / channels**0.5 for _ in range(batches)]
    cells[0] = cells[0].contiguous(memory_format=torch.channels_last)  # and the other is not
    weight, bias = torch.randn(outputs, channels, side, side) / side, torch.randn(outputs)
    expected = windows.definition(tuple(cells), weight, bias, step, channels**0.5, torch.float32)
    assert expected.shape == (2 * batches, outputs, 3, 5) and expected.std() > 0.1
    there = tuple(batch.to(gpu_device) for batch in cells)
    found = gpu.windows(there, weight.to(gpu_device), bias.to(gpu_device), step, channels**0.5, dtype)
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.01}
    torch.testing.assert_close(found.float().cpu(), expected, **tolerance)


def test_windows_do_not_depend_on_the_size_of_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, weight, bias = torch.rand(1, 8, 21, 25), torch.randn(4, 8, 5, 5), torch.randn(4)
    expected = torch.conv2d(cells, 3 * weight, bias, 4).relu()
    for band in (1, 8 * 25 * 4 * 2, 2**22):
        monkeypatch.setattr(evidence, "BAND", band)
        found = windows((cells,), weight, bias, 4, 3.0, torch.float32)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("channels", "groups"), [(32, 16), (12, 3), (5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel_of_the_comparison_agrees(
    channels: int, groups: int, dtype: torch.dtype, gpu: ModuleType, gpu_device: str
) -> None:
    evidence = torch.randn(2, 4, 5, 11).permute(0, 3, 1, 2)
    context0, context1 = torch.randn(2, channels, 6, 5), torch.randn(2, channels, 3, 7)
    context0 = context0.contiguous(memory_format=torch.channels_last).to(dtype)
    points1 = torch.rand(2, 4, 5, 2) * torch.tensor([70.0, 40.0]) - 10  # some are outside
    arguments = (evidence, context0, context1.to(dtype), points1)
    expected = compare_contexts.definition(*arguments, 4, 8, groups)
    found = gpu.compare_contexts(*(t.to(gpu_device) for t in arguments), 4, 8, groups)
    assert found.shape == expected.shape == (2, 11 + channels + groups, 4, 5) and found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 5e-3, "rtol": 2e-3}
    torch.testing.assert_close(found.cpu(), expected, **tolerance)


def test_samples_at_cells_are_the_cells_and_between_them_the_mean() -> None:
    maps = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")
    places = torch.stack([x, y], dim=-1).double().expand(2, 4, 5, 2)
    torch.testing.assert_close(sample(maps, places), maps)
    half = sample(maps, places[:, :3] + torch.tensor([0.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(half, (maps[:, :, :3] + maps[:, :, 1:]) / 2)
    far = sample(maps, places - 100)
    torch.testing.assert_close(far, maps[:, :, :1, :1].expand_as(far))
