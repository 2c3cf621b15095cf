"""Batches depend on the seed and their own number, and on nothing else."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

from deepmatching.data.datasets import Pair, open_dataset
from deepmatching.data.datasets.published import MINI_TRAIN
from deepmatching.errors import DeepMatchingError
from deepmatching.training.config import Config, DataConfig
from deepmatching.training.data import (
    Samples,
    TrainingData,
    collate,
    dataset_batches,
    open_pairs,
    seed_for,
    synthetic_batches,
)
from deepmatching.training.processes import World
from helpers.fake_datasets import write_chairs, write_pairs, write_sintel


def numbered(count: int, size: tuple[int, int] = (4, 6)) -> list[Pair]:
    """Pairs whose images hold their number."""
    return [
        Pair(torch.full((3, *size), float(n)), torch.zeros(3, *size), torch.zeros(*size, 2), torch.zeros(*size).bool())
        for n in range(count)
    ]


def equal(first: Pair, second: Pair) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first[:4], second[:4], strict=True))


@given(st.integers(1, 30), st.integers(0, 3), st.integers(0, 5))
def test_every_epoch_is_a_permutation_of_its_own(count: int, seed: int, epoch: int) -> None:
    samples = Samples(numbered(count), seed, None, flips=False)
    order, following = (
        [int(samples[e * count + n].image0[0, 0, 0]) for n in range(count)]  # type: ignore[union-attr]
        for e in (epoch, epoch + 1)
    )
    assert sorted(order) == list(range(count))
    assert order != following or count < 20


def test_seeds_depend_on_each_of_their_parts() -> None:
    assert len({seed_for(s, p, a, b) for s in (0, 1) for p in ("x", "y") for a in (0, 1) for b in (0, 1)}) == 16


def test_processes_divide_the_batches_that_one_process_would_read(manifest: Path) -> None:
    samples = Samples(open_dataset(manifest), 3, (32, 48), flips=True)
    alone = list(islice(dataset_batches(samples, 2, 0, World(), 0), 6))
    for rank in (0, 1):
        mine = list(islice(dataset_batches(samples, 2, 0, World(rank, 2), 0), 3))
        assert all(equal(batch, alone[2 * n + rank]) for n, batch in enumerate(mine))


@pytest.mark.slow
def test_a_later_start_and_worker_processes_change_nothing(manifest: Path) -> None:
    samples = Samples(open_dataset(manifest), 3, (32, 48), flips=True)
    alone = list(islice(dataset_batches(samples, 1, 0, World(), 0), 7))
    later = list(islice(dataset_batches(samples, 1, 2, World(), 4), 3))
    assert all(equal(batch, alone[4 + n]) for n, batch in enumerate(later))


@pytest.mark.slow
def test_workers_run_nothing_from_the_folder(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(sys, "path", [os.path.abspath(path) for path in sys.path if path])
    samples = Samples(open_dataset(manifest), 3, (32, 48), flips=True)
    assert len(list(islice(dataset_batches(samples, 1, 1, World(), 0), 1))) == 1
    assert not (tmp_path / "executed").exists() and "PYTHONSAFEPATH" not in os.environ


def test_a_crop_larger_than_a_pair_is_limited_to_the_pair() -> None:
    part = Samples(numbered(1, (8, 12)), 0, (100, 6), flips=False)[0]
    assert isinstance(part, Pair) and part.image0.shape == (3, 8, 6)


@pytest.mark.slow
def test_a_pair_that_cannot_be_read_is_an_error_in_its_place_from_workers_too(tmp_path: Path, manifest: Path) -> None:
    entries = json.loads(manifest.read_text())[:2]
    for entry in entries:
        entry |= {key: str(manifest.parent / entry[key]) for key in ("image0", "image1", "flow")}
    (tmp_path / "cut.flo").write_bytes(Path(entries[0]["flow"]).read_bytes()[:500])
    entries[0]["flow"] = "cut.flo"
    (tmp_path / "bad.json").write_text(json.dumps(entries))
    samples = Samples(open_dataset(tmp_path / "bad.json"), 0, (32, 48), flips=True)
    for workers in (0, 1):
        epoch = list(islice(dataset_batches(samples, 1, workers, World(), 0), 2))
        (error,) = [str(item) for item in epoch if isinstance(item, DeepMatchingError)]
        assert "cut.flo" in error and "\n" not in error


def test_pairs_of_two_sizes_are_an_error_and_so_is_none_at_all() -> None:
    with pytest.raises(DeepMatchingError, match="no pairs"):
        Samples([], 0, None, flips=False)
    assert "data.crop" in str(collate([*numbered(1), *numbered(1, (8, 8))]))
    assert str(collate([*numbered(1), DeepMatchingError("No pair.")])) == "No pair."


def test_overfitting_uses_the_same_center_crops(config_of: Callable[..., Config]) -> None:
    config = config_of("data.overfit=2")
    data = TrainingData(config.data, config.seed, World())
    assert data.pairs is not None and len(data.pairs) == 2
    assert torch.equal(data.pairs[1].image0, open_dataset(config.data.train[0])[1].image0[:, 16:48, 24:72])
    for batch in islice(data.batches(0), 6):
        assert any(torch.equal(batch.image0[0], pair.image0) for pair in data.pairs)


class Maker:
    """Draws one number a pair."""

    def batch(self, count: int, generator: torch.Generator) -> Pair:
        noise = torch.rand(count, 3, 4, 4, generator=generator)
        return Pair(noise, noise, noise.permute(0, 2, 3, 1)[..., :2], noise[:, 0] > 2)


def test_synthetic_batches_go_to_the_device() -> None:
    batch = next(synthetic_batches(Maker(), 5, 2, World(device=torch.device("meta")), 0))
    assert {tensor.device.type for tensor in batch[:4]} == {"meta"}


def test_missing_masks_are_an_error_unless_they_are_switched_off(tmp_path: Path) -> None:
    write_sintel(tmp_path, {"cave_2": 2})
    shutil.rmtree(tmp_path / "training" / "occlusions")
    with pytest.raises(DeepMatchingError, match=r"occlusions.*data\.masks=false in training"):
        open_pairs(["sintel-clean"], [str(tmp_path)], "train", DataConfig(train=("sintel-clean",)))
    pair = open_pairs(["sintel-clean"], [str(tmp_path)], "train", DataConfig(train=("sintel-clean",), masks=False))[0]
    assert not pair.occluded.any() and not pair.flow.isnan().any()


@pytest.mark.slow
def test_options_go_to_the_data_sets_that_have_them(tmp_path: Path) -> None:
    sintel, chairs = write_sintel(tmp_path / "S", dict.fromkeys(MINI_TRAIN, 2)), write_chairs(tmp_path / "C", "1 2 1")
    (chairs / "FlyingChairs_train_val.txt").rename(tmp_path / "mine.txt")
    manifest = write_pairs(tmp_path, 2)
    names = ("sintelmini", "sintel-clean", "chairs", str(manifest))
    config = DataConfig(train=names, passes="final", split_file=str(tmp_path / "mine.txt"))
    pairs = open_pairs(names, [str(sintel), str(sintel), str(chairs), ""], "train", config)
    assert isinstance(pairs, ConcatDataset)
    folders = [{entry.image0.parts[-3] for entry in part.entries} for part in pairs.datasets[:2]]  # type: ignore[attr-defined]
    assert folders == [{"final"}, {"clean"}]
    assert [len(part) for part in pairs.datasets] == [7, 7, 2, 2]  # type: ignore[arg-type]
    assert len(pairs) == 18 and torch.equal(pairs[16].image0, open_dataset(manifest)[0].image0)


def test_synthetic_pairs_that_cannot_be_made_are_an_error_in_their_place() -> None:
    class Failing(Maker):
        calls = 0

        def batch(self, count: int, generator: torch.Generator) -> Pair:
            self.calls += 1
            if self.calls == 2:
                raise DeepMatchingError("No pair.")
            return super().batch(count, generator)

    batches = list(islice(synthetic_batches(Failing(), 5, 2, World(), 0), 3))
    assert [str(batch) for batch in batches if isinstance(batch, DeepMatchingError)] == ["No pair."]
    assert isinstance(batches[1], DeepMatchingError)


def test_processes_divide_the_synthetic_batches_from_any_start() -> None:
    alone = list(islice(synthetic_batches(Maker(), 5, 2, World(), 0), 6))
    assert not equal(alone[0], alone[1])
    for rank in (0, 1):
        mine = list(islice(synthetic_batches(Maker(), 5, 2, World(rank, 2), 1), 2))
        assert all(equal(batch, alone[2 * (n + 1) + rank]) for n, batch in enumerate(mine))
