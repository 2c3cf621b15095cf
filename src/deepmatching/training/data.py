"""Batches of pairs; each pair depends on the seed and its own number alone.

Batch number k of a run is the same whatever happened before it and whichever process makes it. Process r of W takes the
batches r, W + r, 2W + r, …, and a resumed run continues the count. Sample j of a data set of n pairs is number j mod n
of the epoch ⌊j / n⌋, and every epoch has its own order.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from deepmatching.data.datasets import FilePairs, Pair, open_dataset
from deepmatching.data.datasets.opening import WITH_PASSES, WITH_SPLIT_FILE, WITH_SPLITS
from deepmatching.data.datasets.pairs import PairDataset, crop, random_crop, random_flip
from deepmatching.errors import DeepMatchingError, check_choice
from deepmatching.extensions import is_import_path
from deepmatching.training.config import DataConfig
from deepmatching.training.processes import World, signal_handler

if TYPE_CHECKING:
    from deepmatching.data.synthesis import Synthesizer

_UPSIDE_DOWN = 0.1  #: fraction of the pairs that are turned upside down
#: A batch, or the error that says why there is none. It is raised when all processes have agreed to stop.
Batch = Pair | DeepMatchingError


def seed_for(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for one purpose: the order of an epoch, the crop of a sample, …

    It depends on nothing that happened before, so a resumed run continues without saved generators.
    """
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator_for(*of: Any) -> torch.Generator:
    """Return a CPU generator with :func:`seed_for`'s seed."""
    return torch.Generator().manual_seed(seed_for(*of))


def open_pairs(names: Sequence[str], roots: Sequence[str], split: str, config: DataConfig) -> PairDataset:
    """Open the data sets of these names as one, with one root for all or one for each. Each gets the options it has."""
    parts = [
        open_dataset(
            name,
            None if is_manifest(name) else root or None,
            split if name.lower() in WITH_SPLITS or is_import_path(name) else None,
            passes=config.passes or None if name.lower() in WITH_PASSES else None,
            split_file=config.split_file or None if name.lower() == WITH_SPLIT_FILE else None,
            masks=config.masks,
        ).with_motion()
        for name, root in zip(names, root_of_each(names, roots), strict=True)
    ]
    return parts[0] if len(parts) == 1 else ConcatDataset(parts)  # type: ignore[arg-type, return-value]


def root_of_each(names: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the root of each data set, which may be that of all; empty if there is none."""
    return list(roots) if len(roots) > 1 else [*roots, ""][:1] * len(names)


def is_manifest(name: str) -> bool:
    """Return whether a data set is a list of the user's own pairs, which needs no root."""
    return name.lower().endswith(".json")


def image_files(pairs: PairDataset) -> list[tuple[Path, Path]]:
    """Return the two image files of every pair, as absolute paths; empty for pairs that are not files."""
    if isinstance(pairs, ConcatDataset):
        return [files for part in pairs.datasets for files in image_files(part)]  # type: ignore[arg-type]
    entries = pairs.entries if isinstance(pairs, FilePairs) else ()
    resolve = cache(Path.resolve)  # each folder once: a data set has tens of thousands of files
    return [
        (resolve(entry.image0.parent) / entry.image0.name, resolve(entry.image1.parent) / entry.image1.name)
        for entry in entries
    ]


class Samples(Dataset):
    """The endless sequence of samples of a data set: shuffled in every epoch, cropped and mirrored at random.

    In place of a pair that cannot be read stands the error; raised in a worker, it would be wrapped in a traceback.
    """

    def __init__(self, pairs: PairDataset, seed: int, size: Sequence[int] | None, flips: bool) -> None:
        if not len(pairs):
            raise DeepMatchingError("There are no pairs to train on: check data.train, data.root and data.split.")
        self.pairs, self.seed, self.size, self.flips = pairs, seed, size, flips

    def __getitem__(self, number: int) -> Batch:
        epoch, position = divmod(number, len(self.pairs))
        try:
            pair = self.pairs[_order(len(self.pairs), self.seed, epoch)[position]]
            generator = generator_for(self.seed, "sample", number)
            if self.size:
                pair = random_crop(pair, self.size, generator)
            return random_flip(pair, generator, vertical=_UPSIDE_DOWN) if self.flips else pair
        except DeepMatchingError as error:
            return error


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    return torch.randperm(count, generator=generator_for(seed, "order", epoch)).tolist()


def collate(items: Sequence[Batch]) -> Batch:
    """Return the pairs as a batch, or the first error among them."""
    pairs = [item for item in items if isinstance(item, Pair)]
    if len(pairs) < len(items):
        return next(item for item in items if isinstance(item, DeepMatchingError))
    if len({(pair.image0.shape, pair.image1.shape) for pair in pairs}) > 1:
        names = ", ".join(f"'{pair.name}' {tuple(pair.image0.shape[1:])}" for pair in pairs[:2])
        return DeepMatchingError(
            f"Pairs of different sizes cannot share a batch ({names}): set data.crop to a size that fits into all of "
            "them, or data.batch=1."
        )
    *tensors, labels = zip(*pairs, strict=True)
    return Pair._make([*map(torch.stack, tensors), ", ".join(labels)])


def synthetic_batches(maker: Synthesizer, seed: int, batch: int, world: World, first: int) -> Iterator[Batch]:
    """Yield batches of generated pairs, on the device, from this process's batch number ``first`` on."""
    for n in count(first * world.size + world.rank, world.size):
        try:
            yield maker.batch(batch, generator_for(seed, "pairs", n)).map(lambda tensor: tensor.to(world.device))
        except DeepMatchingError as error:
            yield error


def dataset_batches(samples: Samples, batch: int, workers: int, world: World, first: int) -> Iterator[Batch]:
    """Yield batches of a data set, on the device, from this process's batch number ``first`` on."""
    numbers = (range(n, n + batch) for n in count((first * world.size + world.rank) * batch, world.size * batch))
    on_gpu = world.device.type == "cuda"
    loader = DataLoader(
        samples,
        batch_sampler=numbers,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate,
        pin_memory=on_gpu,
        generator=torch.Generator(),  # its base seed is not used, and must not be drawn from the global generator
        # A forked child would inherit the locks of this process's threads.
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=partial(_start_worker, os.getpid()),
    )
    # Workers inherit both. Ctrl-C ends the training process's step, not their reading; and until a worker has the
    # import path of this process, it must not look into the current folder.
    was_safe = os.environ.setdefault("PYTHONSAFEPATH", "") != ""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with signal_handler(signal.SIG_IGN, signal.SIGINT):
            items = iter(loader)
    finally:
        if not was_safe:
            del os.environ["PYTHONSAFEPATH"]
    for item in items:
        is_error = isinstance(item, DeepMatchingError)
        yield item if is_error else item.map(lambda tensor: tensor.to(world.device, non_blocking=on_gpu))


def _start_worker(parent: int, worker: int) -> None:
    """Leave Ctrl-C to the training process, and exit at once if that has ended.

    PyTorch's workers notice the end of their parent, unless it ended before they had started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # not inherited on Windows
    if os.name == "posix" and os.getppid() != parent:
        os._exit(1)


class TrainingData:
    """The training pairs of a config: the ``batches`` to train on and, unless they are endless, the ``pairs``."""

    def __init__(self, config: DataConfig, seed: int, world: World) -> None:
        self.config, self.seed, self.world = config, seed, world
        self.maker: Synthesizer | None = None
        self.pairs: PairDataset | None = None
        if config.is_synthetic:
            self.maker = synthesizer(config, world, "train")
            if config.overfit:
                self.pairs = fixed_pairs(self.maker, config.overfit, seed, "overfit")
        else:
            self.pairs = open_pairs(config.train, config.root, config.split or "train", config)
            if config.overfit:
                first = [self.pairs[n] for n in range(min(config.overfit, len(self.pairs)))]
                self.pairs = [crop(pair, config.crop) for pair in first] if any(config.crop) else first

    def batches(self, first: int) -> Iterator[Batch]:
        """Yield batches on the device, from number ``first`` on."""
        config = self.config
        if self.pairs is None:
            assert self.maker is not None
            return synthetic_batches(self.maker, self.seed, config.batch, self.world, first)
        if config.overfit:  # unaugmented, and in memory
            return dataset_batches(Samples(self.pairs, self.seed, None, False), config.batch, 0, self.world, first)
        samples = Samples(self.pairs, self.seed, config.crop if any(config.crop) else None, config.flips)
        return dataset_batches(samples, config.batch, config.workers, self.world, first)


def synthesizer(config: DataConfig, world: World, split: str) -> Synthesizer:
    """Build the generator of synthetic pairs that a config describes."""
    from deepmatching.data.synthesis import PRESETS, Photos, SynthesisSettings, Synthesizer

    changes = dict(config.synthesis)
    preset = changes.pop("preset", "default")
    check_choice("data.synthesis.preset", preset, PRESETS)
    known = [field.name for field in fields(SynthesisSettings)]
    if unknown := [name for name in changes if name not in known]:
        raise DeepMatchingError(f"There is no setting 'data.synthesis.{unknown[0]}': use {', '.join(known)}.")
    # PyTorch does not sample volumes on Apple's GPUs.
    device = torch.device("cpu") if world.device.type == "mps" else world.device
    photos = Photos.load(config.photos, device, split)
    return Synthesizer(photos, (config.crop[0], config.crop[1]), replace(PRESETS[preset], **changes))


def fixed_pairs(maker: Synthesizer, count: int, seed: int, purpose: str) -> list[Pair]:
    """Make ``count`` synthetic pairs, always the same, in main memory."""
    made = (maker.batch(1, generator_for(seed, purpose, n)) for n in range(count))
    return [pair.map(lambda tensor: tensor[0].cpu())._replace(name=f"synthetic {n}") for n, pair in enumerate(made)]
