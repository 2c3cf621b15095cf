"""Batches: shapes, and the same pairs from the same generator."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepmatching.data.synthesis import PRESETS, Photos, SynthesisSettings, Synthesizer
from deepmatching.data.synthesis.generator import to_device
from deepmatching.errors import DeepMatchingError


def test_a_batch_has_the_shapes_of_pairs(photos: Photos) -> None:
    pair = Synthesizer(photos, (64, 88)).batch(3, torch.Generator().manual_seed(0))
    assert pair.image0.shape == pair.image1.shape == (3, 3, 64, 88)
    assert pair.flow.shape == (3, 64, 88, 2) and pair.occluded.shape == (3, 64, 88)
    assert pair.image0.dtype == pair.flow.dtype == torch.float32 and pair.occluded.dtype == torch.bool
    assert torch.isfinite(pair.flow).all()
    assert not pair.image0.requires_grad


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_same_generator_gives_the_same_pairs_and_then_others(photos: Photos, preset: str) -> None:
    maker = Synthesizer(photos, (64, 88), PRESETS[preset])
    first, second = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    one, two = maker.batch(2, first), maker.batch(2, second)
    assert all(torch.equal(a, b) for a, b in zip(one[:4], two[:4], strict=True))
    after = maker.batch(2, first)
    assert not torch.equal(one.flow, after.flow)
    assert torch.equal(after.flow, maker.batch(2, second).flow)


def test_a_batch_leaves_the_global_random_numbers_alone(photos: Photos) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    Synthesizer(photos, (64, 88)).batch(1, torch.Generator().manual_seed(0))
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_displacements_keep_their_bound_and_differ_between_pairs(photos: Photos) -> None:
    settings = SynthesisSettings(max_displacement=24.0, bending=3.0)
    flow = Synthesizer(photos, (96, 128), settings).batch(24, torch.Generator().manual_seed(0)).flow
    assert flow.abs().amax(dim=(1, 2, 3)).max() < 1.1 * 24 + 2 * 3
    median = flow.norm(dim=-1).flatten(1).median(dim=1).values
    assert median.quantile(0.1) < 1.5 and median.quantile(0.9) > 5


def test_scenes_without_layers_and_without_cutouts() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (90, 120, 3)).astype(np.uint8)
    bare = Photos([picture])
    empty = SynthesisSettings(min_layers=0, max_layers=0, driving=0.0)
    flow = Synthesizer(bare, (48, 64), empty).batch(2, torch.Generator().manual_seed(0)).flow
    assert torch.isfinite(flow).all()
    full = Synthesizer(bare, (48, 64), PRESETS["chairs"]).batch(2, torch.Generator().manual_seed(0))
    assert full.occluded.any()


def test_the_smallest_frames_with_the_farthest_motion_and_large_ones_can_be_made(photos: Photos) -> None:
    large = Synthesizer(photos, (400, 560)).batch(1, torch.Generator().manual_seed(0))  # larger than the photographs
    assert torch.isfinite(large.image0).all() and large.image0.std() > 0.01
    settings = SynthesisSettings()
    assert settings.max_displacement == 5 * 16
    pair = Synthesizer(photos, (16, 16), settings).batch(4, torch.Generator().manual_seed(0))
    assert torch.isfinite(pair.flow).all() and pair.flow.abs().max() < 1.1 * 80 + 2 * settings.bending


def test_impossible_frames_are_refused(photos: Photos) -> None:
    with pytest.raises(DeepMatchingError, match="too small"):
        Synthesizer(photos, (8, 64))
    with pytest.raises(DeepMatchingError, match=r"321 pixels is far beyond frames of 64 x 48; set .* to 320 or less"):
        Synthesizer(photos, (48, 64), SynthesisSettings(max_displacement=321))
    with pytest.raises(DeepMatchingError, match="at least one photograph"):
        Photos([])


@dataclass
class _Box:
    numbers: Any
    flags: Any
    nothing: Any


def test_arrays_arrive_on_the_device_unchanged() -> None:
    box = _Box(np.arange(6.0).reshape(2, 3), np.array([True, False]), np.zeros((0, 3)))
    moved, (index, word) = to_device((box, (np.array([2**40, -3]), "text")), torch.device("cpu"))
    assert torch.equal(moved.numbers, torch.arange(6.0).view(2, 3))
    assert moved.flags.tolist() == [1, 0] and moved.nothing.shape == (0, 3)
    assert index.tolist() == [2**40, -3] and word == "text"


def test_the_page_on_synthesis_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "synthesis.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {
        name: float(value)
        for row in rows
        for name, value in zip(re.findall(r"`(\w+)`", row[1]), row[2].split(","), strict=True)
    }
    assert listed == {field.name: field.default for field in fields(SynthesisSettings)}
