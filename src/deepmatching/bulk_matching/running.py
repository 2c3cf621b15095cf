"""Bulk matching: pairs in, a folder of matches out, on one machine or a cluster."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, Self

from deepmatching import __version__
from deepmatching.bulk_matching.cluster import Cluster, check_cluster, run_on_ray
from deepmatching.bulk_matching.engine import ShardMatcher, ShardReport, default_batch
from deepmatching.bulk_matching.pairs import Pair, read_pairs, unique_pairs
from deepmatching.bulk_matching.stamps import has_any
from deepmatching.bulk_matching.status import EVERY, Record, Status, Worker
from deepmatching.bulk_matching.storage import RunFolder
from deepmatching.errors import DeepMatchingError, check_choice, check_number
from deepmatching.io.addresses import check_address, scheme_of, shown
from deepmatching.io.files import PathLike, absolute, as_path
from deepmatching.matcher import DeepMatcher
from deepmatching.models import describe_model
from deepmatching.settings import MODEL, MODELS

ENGINES = ("local", "ray")
#: Largest number of pairs of a shard: small on a CPU, so that a killed run loses little; large on a GPU, for few files.
_LARGEST_SHARD = {"cpu": 8, "mps": 8, "cuda": 64, "ray": 32}
#: Smallest number of shards of a run with enough pairs, so that several workers share the work evenly.
_MIN_SHARDS = 16
_SHARE_OF_WORK = 50  #: The status of a run is written for at most one second in this many.


@dataclass
class Progress:
    """How far a run is."""

    total: int  #: pairs of the run
    before: int  #: pairs that earlier runs finished
    done: int = 0  #: pairs that this run has finished
    doubtful: int = 0  #: those whose matches are probably wrong
    searched: int = 0  #: those whose matches come from a search that followed a failed match
    failures: dict[Pair, str] = field(default_factory=dict)  #: the pairs that failed in this run, and why
    described: int = 0  #: images that were described, each time it was necessary
    memory: int = 0  #: largest number of bytes that one worker held
    started: float = field(default_factory=time.perf_counter)

    def add(self, report: ShardReport) -> None:
        """Count a finished shard."""
        self.done += report.pairs
        self.doubtful += report.doubtful
        self.searched += report.searched
        self.failures.update(report.failures)
        self.described += report.described
        self.memory = max(self.memory, report.memory)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def rate(self) -> float:
        """Pairs per second of this run."""
        return self.done / max(self.elapsed, 1e-9)


def bulk(
    pairs: PathLike | Iterable[tuple[str, str]],
    images: PathLike,
    out: PathLike,
    *,
    model: str = MODEL,
    engine: str = "local",
    cluster: Cluster | None = None,
    batch_size: int | None = None,
    flow: bool = False,
    min_confidence: float | None = None,
    masks: PathLike | None = None,
    restart: bool = False,
    retry: bool = False,
    on_start: Callable[[Progress], object] | None = None,
    on_shard: Callable[[Progress, ShardReport], object] | None = None,
    **settings: Any,
) -> RunFolder:
    """Match many pairs of images into a folder, which a later call completes if this one is interrupted.

    >>> run = dm.bulk("pairs.txt", "photos", "run", radius=320, max_size=1024)
    >>> for pair in run:
    ...     print(pair.names, len(pair.matches), pair.failure)

    Each image is read and described once for its pairs, as far as memory allows. A pair that fails is recorded with the
    reason, and the others go on.

    Args:
        pairs: a file with two names on a line, or the names themselves; see also ``deepmatching.bulk_matching.pairs``.
        images: the folder of the images, or an address such as ``s3://bucket/photos``; names are relative to it.
        out: the folder of the run, or an address. If it has a run with the same settings, that one is continued.
        model: name or file of the model.
        engine: ``"local"``, this process, or ``"ray"``: workers on this machine or a cluster.
        cluster: with ``engine="ray"``: where the workers are, and what each of them gets.
        batch_size: pairs of equal sizes that are matched at once; None for 1 on a CPU and 16 on a GPU.
        flow: also write the flow of each pair, to the folder ``flow`` in ``out``.
        min_confidence: store only matches with at least this confidence, from 0 to 1; None for all.
        masks: a folder with masks of some of the images, named as COLMAP does: ``left/1.jpg.png`` for ``left/1.jpg``.
        restart: forget what is in ``out``.
        retry: match the pairs that failed in an earlier run again, with the others of their shards.
        on_start: called once with the progress, before the first pair.
        on_shard: called after each shard.
        settings: of the matcher, see :class:`~deepmatching.settings.Settings`.

    Returns:
        The run, to iterate over.
    """
    check_choice("engine", engine, ENGINES)
    if batch_size is not None:
        check_number("batch_size", batch_size, minimum=1, whole=True)
    if min_confidence is not None:
        check_number("min_confidence", min_confidence, minimum=0, maximum=1)
    for folder in (images, out, *([] if masks is None else [masks])):
        if scheme_of(as_path(folder)):
            check_address(folder)
    named = read_pairs(pairs, images) if isinstance(pairs, str | os.PathLike) else unique_pairs(pairs)
    if named and not has_any(images, chain.from_iterable(named)):
        raise DeepMatchingError(f"'{shown(images)}' has none of the images, such as '{named[0][0]}'; check the path.")
    if masks is not None and not has_any(masks, (f"{name}.png" for name in chain.from_iterable(named))):
        first = f"{named[0][0]}.png" if named else "NAME.png"
        raise DeepMatchingError(f"'{shown(masks)}' has no mask of an image, such as '{first}'; check the path.")
    settings = {name: value for name, value in settings.items() if value is not None}
    # On a cluster, this process does not match: its matcher tells the settings, and needs no GPU.
    matcher = DeepMatcher.from_pretrained(model, **settings if engine == "local" else {**settings, "device": "cpu"})
    if min_confidence is not None and matcher.network.confidence is None:
        raise DeepMatchingError(f"The model '{model}' does not judge its matches: leave min_confidence out.")
    recorded = {
        **{"version": __version__, **describe_model(model), **matcher.describe()},
        **{"flow": flow, "min_confidence": min_confidence},
        **({} if masks is None else {"masks": absolute(masks)}),
        **{"cell": matcher.network.descriptor.stride, "step": matcher.network.geometry((64, 64), (64, 64)).alpha},
    }
    if engine == "ray":
        check_cluster(cluster or Cluster())  # before anything is written or lost
    with RunFolder.store(out).reserve():
        largest = _LARGEST_SHARD.get("ray" if engine == "ray" else matcher.device.type, 8)
        size = max(1, min(largest, -(-len(named) // _MIN_SHARDS)))
        batch = default_batch(matcher.device) if batch_size is None else batch_size
        size = -(-size // batch) * batch if size > batch else size  # so that a shard has only full batches
        if restart:
            RunFolder.clear(out)
        run = RunFolder.prepare(out, recorded, named, images, size, retry)
        todo = sum(run.plan.count(number) for number in run.missing)
        progress = Progress(len(run), len(run) - todo)
        if on_start is not None:
            on_start(progress)
        # Absolute: workers start in other folders.
        named_masks = None if masks is None else absolute(masks)
        work = absolute(images), absolute(out), batch_size, flow, min_confidence, named_masks
        if engine == "ray":
            file = os.path.abspath(model) if model not in MODELS and os.path.isfile(model) else model
            reports = run_on_ray(run, partial(ShardMatcher.load, file, settings, *work), cluster or Cluster())
        else:
            reports = _run_here(run, partial(ShardMatcher, matcher, *work))
        with _Reporter(run, progress) as reporter:
            for report in reports:
                progress.add(report)
                reporter.add(report)
                if on_shard is not None:
                    on_shard(progress, report)
    return run


class _Reporter:
    """Keeps the status and the record of a run up to date while it is at work."""

    def __init__(self, run: RunFolder, progress: Progress) -> None:
        self._run, self._progress, self._record = run, progress, Record.read(run.path)
        self._workers: dict[str, Worker] = {}
        self._started: dict[str, float] = {}  # when the workers began
        self._next = 0.0

    def __enter__(self) -> Self:
        self._write("running")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._record = self._run.content()  # also of shards that a killed run has not recorded
            self._write("finished")
        else:
            with suppress(DeepMatchingError):  # a full disk: why the run ends is said already
                self._write("stopped")

    def add(self, report: ShardReport) -> None:
        """Count a finished shard."""
        self._record.add(report.number, report.matches, report.failures)
        worker, now = self._workers.setdefault(report.worker, Worker()), time.perf_counter()
        started = self._started.setdefault(report.worker, now - report.seconds)
        worker.pairs += report.pairs
        worker.pairs_per_second = worker.pairs / max(now - started, 1e-9)
        worker.memory = report.memory
        if now > self._next:
            self._write("running")
            end = time.perf_counter()
            self._next = end + max(EVERY, _SHARE_OF_WORK * (end - now))

    def _write(self, state: Literal["running", "stopped", "finished"]) -> None:
        progress, record = self._progress, self._record
        record.write(self._run.path)
        finished, rate = progress.before + progress.done, progress.rate
        Status(
            state=state,
            time=time.time(),
            pairs=progress.total,
            finished=finished,
            failed=sum(map(len, record.failures.values())),
            matches=sum(record.matches.values()),
            pairs_per_second=rate,
            seconds_left=(progress.total - finished) / rate if progress.done else None,
            workers=self._workers,
        ).write(self._run.path)


def _run_here(run: RunFolder, make_worker: Callable[[], ShardMatcher]) -> Iterator[ShardReport]:
    """Match the missing shards in this process."""
    if not (missing := run.missing):
        return
    worker = make_worker()
    writing: deque[Future[ShardReport]] = deque()
    try:
        for place, number in enumerate(missing):
            upcoming = [pair for later in missing[place + 1 : place + 2] for pair in run.plan.shard(later)]
            writing.append(worker.submit(number, run.plan.shard(number), upcoming))
            if len(writing) > 1:  # this thread goes on while another one writes
                yield writing.popleft().result()
        while writing:
            yield writing.popleft().result()
    finally:
        worker.close()
