"""The folder of a run: a manifest with the settings and the pairs, and the matches in shards.

A shard is an ``.npz`` file with the matches of consecutive pairs. It is written under a temporary name and renamed, so
a shard that exists is complete: a run may end at any moment, and the next one does the shards that are missing. The
manifest is written before the first shard, and again only if pairs are added, or images or masks have changed.
"""

import io
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from deepmatching.bulk_matching.pairs import MANIFEST, SHARDS, Pair, order_by_image
from deepmatching.bulk_matching.stamps import is_unchanged, stamps
from deepmatching.bulk_matching.status import RECORD, STATUS, Record
from deepmatching.errors import DeepMatchingError, counted
from deepmatching.io.addresses import scheme_of, shown
from deepmatching.io.arrays import open_npz
from deepmatching.io.files import PathLike, as_path, list_names, remove_file, write_file
from deepmatching.io.store import Store
from deepmatching.io.structured import parse_json
from deepmatching.matches import Matches

_SHARD_NAME = re.compile(r"\d{6,}\.npz")
#: The arrays of a shard with a row for each match.
_ARRAYS = ("keypoints0", "keypoints1", "scores", "confidence")


@dataclass(frozen=True)
class MatchedPair:
    """What a run knows about a pair."""

    names: Pair
    matches: Matches  #: in pixels of the upright images; empty for a pair that failed
    orientations: tuple[int, int] = (1, 1)  #: of the stored pixels, see ``deepmatching.io.image_files``
    failure: str = ""  #: why there are no matches
    doubt: str = ""  #: why its matches are probably wrong; not stored


@dataclass
class Plan:
    """The content of the manifest."""

    settings: dict[str, Any]  #: everything that the matches depend on, JSON-serializable
    format: Literal["deepmatching-run-1"] = "deepmatching-run-1"
    images: str = ""  #: the folder where the images were last
    names: list[str] = field(default_factory=list)  #: of the images; pairs refer to them by number
    stamps: list[str] = field(default_factory=list)  #: of the images' files when the pairs were planned
    mask_stamps: list[str] = field(default_factory=list)  #: of their masks; not in older manifests
    pairs: list[tuple[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  #: shard n has the pairs from ``ends[n - 1]``, or 0, to ``ends[n]``

    def __post_init__(self) -> None:
        if any(not 0 <= number < len(self.names) for pair in self.pairs for number in pair):
            raise ValueError("it has pairs of unknown images")
        if [0, *self.ends] != sorted({0, *self.ends}) or [0, *self.ends][-1] != len(self.pairs):
            raise ValueError("its shards do not fit its pairs")

    def shard(self, number: int) -> list[Pair]:
        """Return the names of the pairs of a shard."""
        return [(self.names[i], self.names[j]) for i, j in self.pairs[slice(*self._range(number))]]

    def _range(self, number: int) -> tuple[int, int]:
        return (self.ends[number - 1] if number else 0), self.ends[number]

    def count(self, number: int) -> int:
        """Return the number of pairs of a shard."""
        first, end = self._range(number)
        return end - first

    def add(self, pairs: Iterable[Pair], shard_size: int) -> None:
        """Append the pairs that are not planned yet, ordered by image, in shards of their own."""
        place = {name: number for number, name in enumerate(self.names)}
        known = {_unordered(*pair) for pair in self.pairs}
        before = len(self.pairs)
        for pair in order_by_image([(a, b) for a, b in pairs if _unordered(place.get(a), place.get(b)) not in known]):
            for name in pair:
                if place.setdefault(name, len(place)) == len(self.names):
                    self.names.append(name)
            self.pairs.append((place[pair[0]], place[pair[1]]))
        now = len(self.pairs)
        self.ends += [min(end, now) for end in range(before + shard_size, now + shard_size, shard_size)]

    def renew_stamps(self, folder: PathLike, masks: PathLike | None = None) -> list[int]:
        """Record the stamps of the images and of their masks; return the numbers of the shards with changed ones."""
        before = self.stamps, self.mask_stamps
        self.stamps = stamps(folder, self.names, self.stamps)
        changed = _changed(self.names, before[0], self.stamps)
        if masks is not None:
            names = [f"{name}.png" for name in self.names]
            self.mask_stamps = stamps(masks, names, self.mask_stamps)
            changed |= _changed(names, before[1], self.mask_stamps)
        places = [place for place, pair in enumerate(self.pairs) if changed.intersection(pair)] if changed else []
        return sorted({bisect_right(self.ends, place) for place in places})


class RunFolder:
    """The run in a folder, to read or to complete; raises if there is none."""

    def __init__(self, path: PathLike, plan: Plan | None = None) -> None:
        self.path, store = as_path(path), self.store(path)
        if plan is None and not store.exists:
            raise DeepMatchingError(
                f"There is no run in '{shown(path)}' (no {MANIFEST}): make one with deepmatching bulk."
            )
        self.plan = store.read(Plan) if plan is None else plan

    @staticmethod
    def store(path: PathLike) -> Store:
        """Return the store of the run in a folder."""
        return Store(Path(path), MANIFEST, "matches", (SHARDS,))

    @classmethod
    def prepare(
        cls,
        path: PathLike,
        settings: dict[str, Any],
        pairs: Sequence[Pair],
        images: PathLike,
        shard_size: int,
        retry: bool = False,
    ) -> "RunFolder":
        """Return the run of these pairs: a new one, or the one that is in the folder, which must be reserved.

        Pairs that an earlier run planned stay; new ones are added. Shards of images that have changed, or whose masks
        have, are removed, and with ``retry`` those with failed pairs too. A run with other settings is an error.
        """
        store, shards = cls.store(path), Path(path, SHARDS)
        if not store.exists and list_names(shards):
            raise DeepMatchingError(
                f"'{shown(shards)}' has files but '{shown(store.manifest)}' is missing: give another folder."
            )
        plan = store.resume(Plan(dict(settings)))
        before = plan.images, plan.stamps, plan.mask_stamps, len(plan.pairs)
        plan.images = shown(images) if scheme_of(images) else os.path.realpath(images)
        plan.add(pairs, shard_size)
        for number in plan.renew_stamps(images, settings.get("masks")):
            remove_file(shard_file(path, number))  # before the manifest forgets the old files
        if (plan.images, plan.stamps, plan.mask_stamps, len(plan.pairs)) != before or not store.exists:
            store.write(vars(plan), indent=None)
        run = cls(path, plan)
        for number in run.content().failures if retry else ():
            remove_file(shard_file(path, number))
        record = Record.read(run.path)
        record.keep(run.done)  # before a shard that was removed is there again
        record.write(run.path)
        return run

    @staticmethod
    def clear(path: PathLike) -> None:
        """Remove the run in a folder, which must be reserved, and nothing else."""
        for name in filter(_SHARD_NAME.fullmatch, list_names(Path(path, SHARDS))):
            remove_file(Path(path, SHARDS, name))
        for name in (MANIFEST, RECORD, STATUS):
            remove_file(Path(path, name))

    @property
    def done(self) -> set[int]:
        """The numbers of the finished shards."""
        there = {int(name[:-4]) for name in list_names(self.path / SHARDS) if _SHARD_NAME.fullmatch(name)}
        return there.intersection(range(len(self.plan.ends)))

    @property
    def missing(self) -> list[int]:
        """The numbers of the shards that are still to be matched, in order."""
        return sorted(set(range(len(self.plan.ends))) - self.done)

    def __len__(self) -> int:
        return len(self.plan.pairs)

    def __iter__(self) -> Iterator[MatchedPair]:
        """Yield the pairs that are finished, shard by shard."""
        for number in sorted(self.done):
            yield from self.read_shard(number)

    def __repr__(self) -> str:
        done = sum(self.plan.count(number) for number in self.done)
        pairs = f"{counted(len(self), 'pair')} of {counted(len(self.plan.names), 'image')}"
        return f"<run of {pairs} in '{shown(self.path)}', {done} of them finished>"

    def read_shard(self, number: int) -> list[MatchedPair]:
        """Return the pairs of a finished shard."""
        return read_shard(shard_file(self.path, number), self.plan.shard(number))

    def content(self) -> Record:
        """Return what the finished shards hold; only those that are not recorded are read."""
        record, done = Record.read(self.path), self.done
        record.keep(done)
        for number in sorted(done.difference(record.matches)):
            pairs = self.read_shard(number)
            failures = {pair.names: pair.failure for pair in pairs if pair.failure}
            record.add(number, sum(len(pair.matches) for pair in pairs), failures)
        return record

    def failures(self) -> dict[Pair, str]:
        """Return the pairs that failed, and why."""
        return self.content().all_failures()


def _changed(names: Sequence[str], before: Sequence[str], now: Sequence[str]) -> set[int]:
    """Return the places of the files whose content has changed; those after the end of ``before`` are new."""
    stamped = enumerate(zip(names, before, now, strict=False))
    return {place for place, (name, old, new) in stamped if not is_unchanged(name, old, new)}


def _unordered(first: int | None, second: int | None) -> int | None:
    """Return a number for a pair of images in either direction; None if one of them is not known."""
    if first is None or second is None:
        return None
    return (min(first, second) << 32) + max(first, second)


def write_shard(path: Path, pairs: Sequence[MatchedPair]) -> None:
    """Write the pairs of a shard, in order; equal pairs give equal bytes."""
    found = [pair.matches for pair in pairs]
    content = {
        "counts": np.array([len(matches) for matches in found], np.int64),
        **{name: _joined(found, name, np.float32) for name in ("keypoints0", "keypoints1", "scores")},
        "sizes": np.array([[matches.size0 or (0, 0), matches.size1 or (0, 0)] for matches in found], np.int64),
        "orientations": np.array([pair.orientations for pair in pairs], np.int8),
        # As JSON in bytes: arrays of text would need Python's pickle.
        "names": np.frombuffer(json.dumps([pair.names for pair in pairs]).encode(), np.uint8),
        "failures": np.frombuffer(json.dumps([pair.failure for pair in pairs]).encode(), np.uint8),
    }
    if any(matches.confidence is not None for matches in found):
        sure = [m if m.confidence is not None else replace(m, confidence=torch.ones(len(m))) for m in found]
        content["confidence"] = _joined(sure, "confidence", np.float32)
    if searched := [matches for matches in found if matches.transformation is not None]:
        content["transformation"] = _joined(searched, "transformation", np.int64)
        content["transformations"] = _joined(searched, "transformations", np.float32)
        tables = [matches.transformations for matches in found]
        content["transformation_counts"] = np.array([0 if t is None else len(t) for t in tables], np.int64)
    stream = io.BytesIO()
    np.savez(stream, **content)  # type: ignore[arg-type]
    write_file(path, stream.getbuffer())


def read_shard(path: Path, names: list[Pair]) -> list[MatchedPair]:
    """Return the pairs in a file, which must be the shard of the pairs with these names."""
    stored = open_npz(path, "shard of matches")
    try:
        packed, failures = (parse_json(stored[name].tobytes()) for name in ("names", "failures"))
        counts, sizes, orientations = stored["counts"], stored["sizes"], stored["orientations"].tolist()
        if [tuple(pair) for pair in packed] != names or counts.shape != (len(names),) or (counts < 0).any():
            raise ValueError("it has other pairs")
        parts: dict[str, Any] = {name: _split(stored[name], counts) for name in _ARRAYS if name in stored}
        searched = np.ones(len(names), bool)
        if "transformations" in stored:
            tables = stored["transformation_counts"]
            searched = tables > 0  # others failed, or were matched well enough without a search
            parts["transformation"] = _split(stored["transformation"], np.where(searched, counts, 0))
            parts["transformations"] = _split(stored["transformations"], tables)
        pairs = []
        for n, failure in enumerate(failures):
            own = {name: part[n] for name, part in parts.items() if searched[n] or "transformation" not in name}
            size0, size1 = (tuple(size) if size[0] else None for size in sizes[n].tolist())
            matches = Matches(size0=size0, size1=size1, **own)
            pairs.append(MatchedPair(names[n], matches, tuple(orientations[n]), str(failure)))
    except (KeyError, ValueError, IndexError, TypeError, OverflowError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), "it is damaged")
        problem = f"'{shown(path)}' is not a shard of this run ({reason})"
        raise DeepMatchingError(f"{problem}: remove it and run the same command again.") from error
    return pairs


def _split(array: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    if len(array) != counts.sum():
        raise ValueError("it has other numbers of matches")
    return np.split(array, np.cumsum(counts)[:-1])


def shard_file(folder: PathLike, number: int) -> Path:
    """Return the file of a shard."""
    return Path(folder, SHARDS, f"{number:06d}.npz")


def _joined(matches: Sequence[Matches], name: str, dtype: type[np.generic]) -> np.ndarray:
    """Return the tensors of this name, one after the other."""
    return np.concatenate([np.asarray(getattr(each, name).detach().cpu(), dtype) for each in matches])
