"""The folder of a run: a manifest with the settings and the pairs, and the matches in shards.

A shard is an ``.npz`` file with the matches of consecutive pairs. It is written under a temporary name and renamed, so
a shard that exists is complete: a run may end at any moment, and the next one does the shards that are missing. The
manifest is written before the first shard, and again only if pairs are added or images have changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepmatching.bulk_matching.pairs import MANIFEST, SHARDS, Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import Archive
from deepmatching.io.files import PathLike, atomic_write
from deepmatching.io.store import Store
from deepmatching.io.structured import parse_json
from deepmatching.matches import Matches

FORMAT = "deepmatching-run-1"

_SHARD_NAME = re.compile(r"\d{6,}\.npz")

#: The stamp of a file that is not there.
MISSING = "missing"

#: Formats in which other pixels give another size or another end of the file. In others, the time counts.
_COMPRESSED = (".jpg", ".jpeg", ".png", ".webp")

#: Bytes at the beginning and at the end of a file that its stamp depends on.
_SAMPLED_BYTES = 16_384


@dataclass(frozen=True)
class MatchedPair:
    """What a run knows about a pair.

    Attributes:
        names: of the two images.
        matches: in pixels of the upright images; empty for a pair that failed.
        orientations: of the stored pixels of the two images, see ``deepmatching.io.image_files``.
        failure: why there are no matches; "" for a pair that was matched.
    """

    names: Pair
    matches: Matches
    orientations: tuple[int, int] = (1, 1)
    failure: str = ""


@dataclass
class Plan:
    """The content of the manifest.

    Attributes:
        settings: everything that the matches depend on, JSON-serializable.
        images: where the images were last.
        names: of the images; pairs refer to them by number.
        stamps: of the images' files when the pairs were planned, in the same order.
        pairs: numbers of the two images of each pair.
        ends: of the shards; shard n has the pairs from ``ends[n - 1]``, or 0, up to ``ends[n]``.
    """

    settings: dict[str, Any]
    images: str = ""
    names: list[str] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

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
        """Append the pairs that are not planned yet, in shards of their own."""
        place = {name: number for number, name in enumerate(self.names)}
        known = {frozenset(pair) for pair in self.pairs}
        before = len(self.pairs)
        for pair in pairs:
            for name in pair:
                if place.setdefault(name, len(place)) == len(self.names):
                    self.names.append(name)
            numbers = (place[pair[0]], place[pair[1]])
            if frozenset(numbers) not in known:
                self.pairs.append(numbers)
        self.ends += [
            min(end, len(self.pairs)) for end in range(before + shard_size, len(self.pairs) + shard_size, shard_size)
        ]

    def renew_stamps(self, folder: PathLike) -> list[int]:
        """Record the stamps of the images in the folder; return the numbers of the shards whose images have changed."""
        before, self.stamps = (
            self.stamps,
            [stamp(Path(folder, name), old) for name, old in zip_longest(self.names, self.stamps, fillvalue="")],
        )
        both = enumerate(zip(self.names, before, self.stamps, strict=False))
        changed = {number for number, (name, old, new) in both if not is_same(name, old, new)}
        places = {place for place, pair in enumerate(self.pairs) if changed.intersection(pair)}
        return [number for number in range(len(self.ends)) if places.intersection(range(*self._range(number)))]


class RunFolder:
    """The run in a folder, to read or to complete.

    Args:
        path: the folder.

    Raises:
        DeepMatchingError: if there is no run in it.
    """

    def __init__(self, path: PathLike) -> None:
        self.path, store = Path(path), self.store(path)
        if not store.exists:
            raise DeepMatchingError(f"There is no run in '{path}' (no {MANIFEST}): make one with deepmatching bulk.")
        self.plan = store.read(_parse_plan)

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
    ) -> RunFolder:
        """Return the run of these pairs: a new one, or the one that is in the folder, which must be reserved.

        Pairs that an earlier run planned stay; new ones are added. Shards of images whose files have changed are
        removed, and with ``retry`` those with failed pairs too.

        Raises:
            DeepMatchingError: if the folder has a run with other settings.
        """
        folder, store = Path(path), cls.store(path)
        if store.exists:
            plan = store.read(_parse_plan)
            store.check_settings(plan.settings, settings)
        elif any((folder / SHARDS).iterdir()):
            raise DeepMatchingError(
                f"'{folder / SHARDS}' has files but '{store.manifest}' is missing: give another folder."
            )
        else:
            plan = Plan(dict(settings))
        before = json.dumps(vars(plan))
        plan.images = os.path.realpath(images)
        plan.add(pairs, shard_size)
        for number in plan.renew_stamps(images):
            shard_file(folder, number).unlink(missing_ok=True)  # before the manifest forgets the old files
        if json.dumps(vars(plan)) != before:
            store.write({"format": FORMAT, **vars(plan)}, indent=None)
        run = cls(folder)
        if retry:
            for number in sorted(run.done):
                if any(pair.failure for pair in run.read_shard(number)):
                    shard_file(folder, number).unlink()
        return run

    @staticmethod
    def clear(path: PathLike) -> None:
        """Remove the run in a folder, which must be reserved, and nothing else."""
        for file in sorted(Path(path, SHARDS).iterdir()):
            if _SHARD_NAME.fullmatch(file.name):
                file.unlink()
        Path(path, MANIFEST).unlink(missing_ok=True)

    @property
    def done(self) -> set[int]:
        """The numbers of the finished shards."""
        try:
            there = set(os.listdir(self.path / SHARDS))
        except OSError:
            return set()
        return {number for number in range(len(self.plan.ends)) if _shard_name(number) in there}

    @property
    def missing(self) -> list[int]:
        """The numbers of the shards that are still to be matched, in order."""
        done = self.done
        return [number for number in range(len(self.plan.ends)) if number not in done]

    def __len__(self) -> int:
        return len(self.plan.pairs)

    def __iter__(self) -> Iterator[MatchedPair]:
        """Yield the pairs that are finished, shard by shard."""
        for number in sorted(self.done):
            yield from self.read_shard(number)

    def __repr__(self) -> str:
        done = sum(self.plan.count(number) for number in self.done)
        return f"<run of {len(self)} pairs of {len(self.plan.names)} images in '{self.path}', {done} of them finished>"

    def read_shard(self, number: int) -> list[MatchedPair]:
        """Return the pairs of a finished shard."""
        return read_shard(shard_file(self.path, number), self.plan.shard(number))

    def failures(self) -> dict[Pair, str]:
        """Return the pairs that failed, and why."""
        return {pair.names: pair.failure for pair in self if pair.failure}


def write_shard(path: Path, pairs: Sequence[MatchedPair]) -> None:
    """Write the pairs of a shard, in order; equal pairs give equal bytes."""
    found = [pair.matches for pair in pairs]
    content = {
        "counts": np.array([len(matches) for matches in found], np.int64),
        **{name: _joined(found, name, np.float32) for name in ("keypoints0", "keypoints1", "scores")},
        "sizes": np.array([[matches.size0 or (0, 0), matches.size1 or (0, 0)] for matches in found], np.int64),
        "orientations": np.array([pair.orientations for pair in pairs], np.int8),
        "names": _pack([pair.names for pair in pairs]),
        "failures": _pack([pair.failure for pair in pairs]),
    }
    if any(matches.confidence is not None for matches in found):
        judged = [matches if matches.confidence is not None else _certain(matches) for matches in found]
        content["confidence"] = _joined(judged, "confidence", np.float32)
    if searched := [matches for matches in found if matches.transformation is not None]:
        content["transformation"] = _joined(searched, "transformation", np.int64)
        content["transformations"] = _joined(searched, "transformations", np.float32)
        tables = [matches.transformations for matches in found]
        content["transformation_counts"] = np.array([0 if t is None else len(t) for t in tables], np.int64)
    stream = io.BytesIO()
    np.savez(stream, **content)  # type: ignore[arg-type]
    with atomic_write(path) as temporary:
        temporary.write_bytes(stream.getvalue())


def read_shard(path: Path, names: list[Pair]) -> list[MatchedPair]:
    """Return the pairs in a file, which must be the shard of the pairs with these names."""
    stored = Archive(path, "shard of matches")
    try:
        packed, failures = _unpack(stored["names"]), _unpack(stored["failures"])
        counts, sizes, orientations = stored["counts"], stored["sizes"], stored["orientations"]
        arrays = stored["keypoints0"], stored["keypoints1"], stored["scores"]
        confidence = stored.get("confidence")
        numbers, tables = stored.get("transformation"), stored.get("transformations")
        ends = np.cumsum(stored["transformation_counts"]) if tables is not None else np.zeros(len(names), int)
        if [tuple(pair) for pair in packed] != names or counts.shape != (len(names),) or (counts < 0).any():
            raise ValueError("it has other pairs")
        if any(len(array) != counts.sum() for array in arrays):
            raise ValueError("it has other numbers of matches")
        pairs = []
        for n, (first, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
            (rows0, columns0), (rows1, columns1) = sizes[n].tolist()
            more: dict[str, Any] = {} if confidence is None else {"confidence": confidence[first:end]}
            if numbers is not None and tables is not None and not failures[n]:
                table = tables[ends[n - 1] if n else 0 : ends[n]]
                more |= {"transformation": numbers[first:end], "transformations": table}
            keypoints0, keypoints1, scores = (torch.from_numpy(array[first:end]) for array in arrays)
            size0, size1 = (rows0, columns0) if rows0 else None, (rows1, columns1) if rows1 else None
            matches = Matches(keypoints0, keypoints1, scores, size0, size1, **more)
            turned = (int(orientations[n, 0]), int(orientations[n, 1]))
            pairs.append(MatchedPair(names[n], matches, turned, str(failures[n])))
    except (KeyError, ValueError, IndexError, TypeError, OverflowError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), "it is damaged")
        raise DeepMatchingError(
            f"'{path}' is not a shard of this run ({reason}): remove it and run the same command again."
        ) from error
    return pairs


def shard_file(folder: Path, number: int) -> Path:
    """Return the file of a shard."""
    return folder / SHARDS / _shard_name(number)


def _shard_name(number: int) -> str:
    return f"{number:06d}.npz"


def _joined(matches: Sequence[Matches], name: str, dtype: type[np.generic]) -> np.ndarray:
    """Return the tensors of this name, one after the other."""
    return np.concatenate([np.asarray(getattr(each, name).detach().cpu(), dtype) for each in matches])


def _certain(matches: Matches) -> Matches:
    return replace(matches, confidence=torch.ones(len(matches)))


def _pack(value: Any) -> np.ndarray:
    """Encode JSON as bytes: arrays of text would need Python's pickle."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _unpack(array: np.ndarray) -> Any:
    return parse_json(array.tobytes())


def _parse_plan(content: Any) -> Plan:
    if content["format"] != FORMAT:
        raise ValueError("it has another format")
    plan = Plan(
        dict(content["settings"]),
        str(content["images"]),
        [str(name) for name in content["names"]],
        [str(text) for text in content["stamps"]],
        [(int(i), int(j)) for i, j in content["pairs"]],
        [int(end) for end in content["ends"]],
    )
    numbers = range(len(plan.names))
    if not all(i in numbers and j in numbers for i, j in plan.pairs):
        raise ValueError("it has pairs of unknown images")
    if [0, *plan.ends] != sorted({0, *plan.ends}) or (plan.ends or [0])[-1] != len(plan.pairs):
        raise ValueError("its shards do not fit its pairs")
    return plan


def stamp(path: Path, before: str = "") -> str:
    """Return the size of a file, its time and a digest of its beginning and end.

    If size and time are those of the stamp ``before``, that one is returned and the file is not read.
    """
    try:
        about = path.stat()
        text = f"{about.st_size} bytes, {about.st_mtime_ns} ns"
        if before.startswith(f"{text}, "):
            return before
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLED_BYTES))
            file.seek(max(0, about.st_size - _SAMPLED_BYTES), os.SEEK_SET)
            digest.update(file.read(_SAMPLED_BYTES))
    except (OSError, ValueError):
        return MISSING
    return f"{text}, {digest.hexdigest()[:16]}"


def is_same(name: str, before: str, now: str) -> bool:
    """Tell whether two stamps are of one content; ``name`` tells the format.

    Photographs that were copied, or downloaded again, have another time, and need not be matched again.
    """
    (size0, *rest0), (size1, *rest1) = before.split(", "), now.split(", ")
    if size0 != size1 or rest0[:1] == rest1[:1]:
        return size0 == size1
    is_compressed = Path(name).suffix.lower() in _COMPRESSED
    return is_compressed and len(rest0) == 2 and rest0[1:] == rest1[1:]  # the first runs had no digests
