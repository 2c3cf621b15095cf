"""Interpolation in tensors of fixed shapes: it equals that of arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.flow import PRESETS, confidence, filters, interpolate
from deepmatching.flow.confidence import probability
from deepmatching.flow.fields import (
    Field,
    agreement_of,
    field_of,
    field_of_decoded,
    in_groups,
    interpolate_field,
    round_trip_errors,
)
from deepmatching.flow.operators.geodesic import cells_of
from deepmatching.matches import Matches, matches_of
from deepmatching.network.operators.decoding import Decoded
from helpers.volumes import blobs

quick = settings(max_examples=15)
SIZE = (48, 64)


def scene(seed: int, outliers: float = 0.2) -> tuple[Field, Field, Tensor, Tensor]:
    """Matches of the grid, some of them wrong, some that do not count; the way back; edges and an image."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[4 : SIZE[0] : 8, 4 : SIZE[1] : 8] - 0.5
    start = np.stack([x.ravel(), y.ravel()], axis=1)
    shift = np.array([3.0, -2.0]) + 0.05 * start + generator.normal(0, 0.3, start.shape)
    shift += (generator.random(len(start)) < outliers)[:, None] * generator.normal(0, 15, start.shape)
    there = start + generator.uniform(-3, 3, start.shape)
    scores = generator.uniform(1, 3, len(start)).round(1)
    counts = generator.random(len(start)) < 0.9
    forward = (torch.from_numpy(array) for array in (start, start + shift, scores, counts))
    backward = (torch.from_numpy(array) for array in (there + 3, there, scores, generator.random(len(start)) < 0.9))
    edges = torch.from_numpy(generator.uniform(0, 1, SIZE).astype(np.float32) ** 4)
    return Field(*forward), Field(*backward), edges, blobs(seed, 1, 3, *SIZE)[0]


def counted(field: Field) -> list[np.ndarray]:
    """points0, points1 and scores of the matches that count."""
    return [tensor[field.counts].numpy() for tensor in field[:3]]


@quick
@given(st.integers(0, 2**31), st.sampled_from(sorted(PRESETS)), st.booleans(), st.booleans(), st.floats(0, 1))
def test_the_flow_is_that_of_arrays(seed: int, name: str, mean: bool, weighted: bool, sure: float) -> None:
    forward, backward, edges, image = scene(seed)
    judged = np.random.default_rng(seed).uniform(0, 1, len(forward.scores)) < sure
    forward = forward._replace(confidence=torch.from_numpy(np.where(judged, 0.9, forward.scores / 10)))
    chosen = replace(PRESETS[name].interpolation, model="mean" if mean else "affine")
    weights = torch.rand(len(forward.scores), dtype=torch.float64) + 0.1 if weighted else None
    found = interpolate_field(forward, edges, image, backward, chosen, weights)
    start, end, scores = counted(forward)
    expected = interpolate(
        start,
        end,
        edges,
        image,
        scores=scores,
        weights=None if weights is None else weights[forward.counts],
        confidence=forward.confidence[forward.counts],
        backward=tuple(counted(backward)[:2]),
        settings=chosen,
    )
    kept = np.flatnonzero(forward.counts)[expected.kept]
    np.testing.assert_array_equal(np.flatnonzero(found.counts), kept)
    np.testing.assert_allclose(found.flow, expected.flow, atol=1e-5)
    other = probability(found.flow, found.origin, image, image)
    np.testing.assert_allclose(other, confidence(torch.from_numpy(expected.flow), expected, image, image), atol=1e-5)


def test_of_two_matches_in_a_pixel_the_better_counts_and_of_equals_the_first() -> None:
    start = torch.tensor([[2.0, 2], [2.1, 2], [7, 7], [7.2, 7], [9, 9], [50, 2], [float("nan"), 1], [3, 1]])
    end = start + 1
    end[7] = 1e7
    scores = torch.tensor([1.0, 2, 5, 5, float("nan"), 1, 1, 1])
    found = interpolate_field(Field(start, end, scores, torch.ones(8, dtype=torch.bool)), torch.zeros(12, 12))
    assert found.counts.tolist() == [False, True, True, False, False, False, False, False]
    np.testing.assert_allclose(found.flow, 1, atol=1e-5)


def test_without_matches_that_count_the_flow_is_still_finite() -> None:
    forward, backward, edges, image = scene(1)
    found = interpolate_field(forward._replace(counts=torch.zeros_like(forward.counts)), edges, image, backward)
    assert not found.counts.any() and torch.isfinite(found.flow).all()


@pytest.mark.parametrize("seed", range(4))
def test_round_trips_are_those_of_arrays(seed: int) -> None:
    generator = np.random.default_rng(seed)
    start, end, there, back = (generator.uniform(-7, 66, (n, 2)) for n in (30, 30, 40, 40))
    there[0] = 8 * np.floor(there[1] / 8) + 1  # in one bin: the later one counts
    backward = Field(*(torch.from_numpy(a) for a in (there, back, there[:, 0], np.arange(40) > 2)))
    found = round_trip_errors(torch.from_numpy(end), torch.from_numpy(end - start), backward, (60, 60))
    np.testing.assert_allclose(found, filters.round_trip_errors(start, end, there[3:], back[3:]))


@quick
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(2, 6))
def test_groups_are_those_of_arrays(seed: int, seeds: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    pixels = generator.choice(30 * 30, seeds, replace=False)
    cells = cells_of(generator.random((30, 30)), np.stack([pixels % 30, pixels // 30], axis=1))
    displacements = generator.integers(0, 3, (seeds, 2)) * 2.0
    graph = tuple(torch.from_numpy(array) for array in cells.graph)
    found = in_groups(graph, torch.from_numpy(displacements), 2.5, size)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, filters.group_sizes(cells, displacements, 2.5) >= size)


@quick
@given(st.integers(0, 2**31), st.integers(3, 8), st.integers(3, 8), st.sampled_from([0.3, 0.9, 1.0]))
def test_agreement_is_that_of_the_matches(seed: int, rows: int, columns: int, verified: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(rows) * 8.0 + 4, torch.arange(columns) * 8.0 + 4, indexing="ij")
    points0 = torch.stack([x, y], dim=2)
    points1 = points0 + 3 * torch.randn(1, rows, columns, 2, generator=generator)
    counts = torch.rand(1, rows, columns, generator=generator) < verified
    counts[:, [0, 0, -1, -1], [0, -1, 0, -1]] = True  # the matches then show the whole grid
    counts[:, :2, :2] = True  # and its spacing
    decoded = Decoded(points0, points1, torch.ones(1, rows, columns), torch.zeros(1, rows, columns).long(), counts)
    expected = matches_of(decoded, 0, (rows * 8, columns * 8), (rows * 8, columns * 8)).agreement
    assert float(agreement_of(decoded, 8)) == pytest.approx(expected)


def test_a_field_of_decoded_matches_measures_from_pixel_centres() -> None:
    points = torch.tensor([[[4.0, 4], [12, 4]]])
    decoded = Decoded(
        points, points[None] + 2, torch.ones(1, 1, 2), torch.zeros(1, 1, 2).long(), torch.tensor([[[True, False]]])
    )
    field, matches = field_of_decoded(decoded), matches_of(decoded, 0)
    assert torch.equal(field.points0[field.counts], matches.keypoints0)
    assert torch.equal(field.points1[field.counts], matches.keypoints1)
    other = field_of(Matches(*counted(field)), torch.device("cpu"))
    assert other.counts.all() and torch.equal(other.points0, matches.keypoints0)
