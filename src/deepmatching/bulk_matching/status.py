"""What a run says of itself outside the terminal: its figures, and what its finished shards hold.

``status.json`` has the figures, for people and for monitoring. ``finished.json`` records the failures and the number of
matches of finished shards, so that nobody has to read the shards to know them. Both are written while a run is at work,
about every ten seconds. A shard that is not recorded, as its run was killed before, is read.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import shown
from deepmatching.io.files import PathLike, as_path, write_file
from deepmatching.io.store import Store

STATUS, RECORD = "status.json", "finished.json"  #: Files in the folder of a run.
EVERY = 10.0  #: Seconds from one writing of both files to the next.


@dataclass
class Worker:
    """What one worker has done in this run."""

    pairs: int = 0
    pairs_per_second: float = 0.0
    memory: int = 0  #: bytes that its process holds


@dataclass
class Status:
    """The figures of a run at a time."""

    state: Literal["running", "stopped", "finished"]
    time: float  #: when they were written, in seconds since 1970
    pairs: int  #: of the run
    finished: int  #: pairs that are matched or have failed
    failed: int
    matches: int
    pairs_per_second: float  #: since the command began
    seconds_left: float | None  #: None as long as nothing is known
    workers: dict[str, Worker] = field(default_factory=dict)  #: by host and process
    format: Literal["deepmatching-status-1"] = "deepmatching-status-1"

    def write(self, folder: Path) -> None:
        """Replace the status of the run in a folder."""
        write_file(folder / STATUS, json.dumps(asdict(self), indent=1))


def read_status(folder: PathLike) -> Status:
    """Return the status of the run in a folder."""
    store = _store(as_path(folder), STATUS)
    if not store.exists:
        raise DeepMatchingError(f"There is no status of a run in '{shown(folder)}' (no {STATUS}): check the path.")
    return store.read(Status)


def _store(folder: Path, name: str) -> Store:
    return Store(folder, name, "matches")


@dataclass
class Record:
    """What finished shards hold."""

    matches: dict[int, int] = field(default_factory=dict)  #: number of matches of each shard that is recorded
    failures: dict[int, list[tuple[Pair, str]]] = field(default_factory=dict)  #: of shards that have some, and why

    def add(self, number: int, matches: int, failures: dict[Pair, str]) -> None:
        """Record a finished shard."""
        self.matches[number] = matches
        if failures:
            self.failures[number] = list(failures.items())

    def all_failures(self) -> dict[Pair, str]:
        """Return the pairs that failed, in the order of the shards, and why."""
        return dict(failure for number in sorted(self.failures) for failure in self.failures[number])

    def keep(self, numbers: set[int]) -> None:
        """Forget all shards but these."""
        for kept in (self.matches, self.failures):
            for number in set(kept).difference(numbers):
                del kept[number]  # type: ignore[attr-defined]

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Return the record of the run in a folder; an empty one if there is none, or a damaged one."""
        try:
            return _store(folder, RECORD).read(cls)
        except DeepMatchingError:
            return cls()

    def write(self, folder: Path) -> None:
        """Replace the record of the run in a folder."""
        write_file(folder / RECORD, json.dumps(asdict(self)))
