"""``deepmatching bulk``."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepmatching.commands import messages, options, runs
from deepmatching.commands.machine import use_threads
from deepmatching.commands.messages import duration, progress_bar, say
from deepmatching.commands.options import argument, option, refuse
from deepmatching.errors import DeepMatchingError, counted
from deepmatching.settings import RADIUS

if TYPE_CHECKING:
    from deepmatching.bulk_matching import Progress, RunFolder, ShardReport
    from deepmatching.bulk_matching.pairs import Pair

_MAX_PRINTED_FAILURES = 5  #: Number of failed pairs that are printed at the end; all are in the file of failures.
NEIGHBOURS = 20  #: Default number of similar images for each image.
FAILURES = "failures.txt"  #: File in the run's folder with the pairs that failed.


@options.command(*options.MATCHING, "auto")
def bulk(
    source: Path | None = argument(
        None,
        "PAIRS|FOLDER",
        "A file with the names of two images on each line, as hloc writes; or, with --exhaustive, "
        "--sequential or --retrieval, the folder of the images, which may be in an object store (s3://BUCKET/FOLDER).",
    ),
    *,
    out: Path | None = option(
        None, "Folder for the matches, perhaps in an object store. A run in it is continued.", "RUN"
    ),
    status: Path | None = option(None, "Print how far the run in this folder is, and do nothing else.", "RUN"),
    images: Path | None = option(None, "With a file of pairs: the folder of the images.", "FOLDER"),
    exhaustive: bool = option(False, "Match every image with every other."),
    sequential: int | None = option(None, "Match every image with the N that follow it by name.", "N"),
    retrieval: Path | None = option(
        None, "Match every image with the most similar ones: lines of two names, or hloc's descriptors (.h5).", "FILE"
    ),
    neighbours: int | None = option(None, "With --retrieval: how many similar images for each.", "N", f"{NEIGHBOURS}"),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    flow: bool = option(False, "Also write the flow of each pair (.flo), to the folder flow in RUN."),
    threads: int | None = options.THREADS,
    min_confidence: float | None = options.LEAST_CONFIDENCE,
    masks: Path | None = option(
        None, "Folder with masks of the images, named as COLMAP does: 1.jpg.png for 1.jpg. Black is not matched.", "DIR"
    ),
    batch: int | None = option(None, "Pairs of equal sizes that are matched at once.", "N", "1; on a GPU 16"),
    engine: Literal["local", "ray"] = option("local", "Match in this process, or with Ray, here or on a cluster."),
    address: str | None = option(None, "With --engine ray: the cluster.", "auto|HOST:PORT", "Ray on this machine"),
    workers: int | None = option(None, "With --engine ray: number of workers.", "N", "as many as fit"),
    gpus_per_worker: float | None = option(None, "With --engine ray: GPUs of each worker.", "N", "1 if there are some"),
    cpus_per_worker: int | None = option(
        None, "With --engine ray: CPU cores for each worker.", "N", "1 beside a GPU, else up to 4"
    ),
    resume: bool = option(True, "Continue the run in the folder, or remove it first.", flags="--resume/--restart"),
    retry: bool = option(False, "Match failed pairs of an earlier run again."),
    graph: Path | None = option(
        None, "At the end, verify the pairs geometrically and draw the match graph of those that pass.", "PICTURE"
    ),
    min_matches: int | None = runs.LEAST_MATCHES,
) -> None:
    """Match many pairs of images.

    deepmatching bulk PAIRS --images FOLDER --out RUN

    deepmatching bulk FOLDER --exhaustive --out RUN

    deepmatching bulk --status RUN

    Each image is described once for all its pairs. A pair that fails is recorded, and the others go on. After an
    interruption, run the same command again to continue. deepmatching export writes the matches for hloc and COLMAP,
    deepmatching sfm reconstructs the scene.
    """
    from deepmatching.bulk_matching import Cluster
    from deepmatching.bulk_matching import bulk as run_bulk
    from deepmatching.drawing import check_picture_path

    if status is not None:
        return _print_status(status)
    if source is None or out is None:
        missing = "--out RUN, a folder for the matches" if source else "the pairs, or the folder of the images"
        raise DeepMatchingError(f"Something is missing: give {missing}.")
    if retrieval is None:
        refuse({"neighbours": neighbours}, "is for --retrieval: leave it out.")
    count = NEIGHBOURS if neighbours is None else neighbours
    folder, pairs = _pairs(source, images, exhaustive, sequential, retrieval, count)
    if options.is_same(folder, out):
        raise DeepMatchingError(f"'{folder}' holds the images: give another folder for the run.")
    if graph is None:
        refuse({"min_matches": min_matches}, "is for --graph: leave it out.")
    options.check_outputs([(graph, check_picture_path)], {folder / name for pair in pairs for name in pair})
    of_workers = {"workers": workers, "gpus_per_worker": gpus_per_worker, "cpus_per_worker": cpus_per_worker}
    if engine == "local":
        refuse({"address": address, **of_workers}, "is for --engine ray: leave it out.")
    else:
        refuse({"threads": threads}, "is for --engine local: give --cpus-per-worker.")
    use_threads(threads)
    with _Display(out) as display:
        run = run_bulk(
            pairs,
            folder,
            out,
            model=model,
            engine=engine,
            cluster=Cluster(address, workers, gpus_per_worker, cpus_per_worker),
            batch_size=batch,
            flow=flow,
            min_confidence=min_confidence,
            masks=masks,
            restart=not resume,
            retry=retry,
            on_start=display.started,
            on_shard=display.finished_shard,
            **settings,
        )
    _summarize(run, display.progress)
    if graph is not None:
        runs.draw_graph(run, graph, min_matches)
        messages.say_written(graph)


def _print_status(folder: Path) -> None:
    """Print the figures that the run in a folder has written last."""
    from deepmatching.bulk_matching.status import read_status
    from deepmatching.network.memory import amount

    status = read_status(folder)
    left = "" if status.seconds_left is None or status.state == "finished" else duration(status.seconds_left)
    rows = [
        ("state", f"{status.state}, as it said {duration(max(0.0, time.time() - status.time))} ago"),
        ("pairs", f"{status.finished} of {status.pairs} finished ({status.failed} failed)"),
        ("matches", str(status.matches)),
        ("speed", f"{status.pairs_per_second:.3g} pairs/s"),
        *([("left", left)] if left else []),
    ]
    for name, worker in status.workers.items():
        speed = f"{worker.pairs_per_second:.3g} pairs/s"
        rows.append((name, f"{counted(worker.pairs, 'pair')}, {speed}, {amount(worker.memory)}"))
    messages.print_rows(rows, to_output=True)


def _pairs(
    source: Path, images: Path | None, exhaustive: bool, sequential: int | None, retrieval: Path | None, neighbours: int
) -> tuple[Path, list[Pair]]:
    """Return the folder of the images, and the pairs."""
    from deepmatching.bulk_matching import exhaustive_pairs, read_pairs, retrieved_pairs, sequential_pairs

    ways = {"--exhaustive": exhaustive or None, "--sequential": sequential, "--retrieval": retrieval}
    if chosen := [name for name, value in ways.items() if value is not None]:
        if len(chosen) > 1:
            raise DeepMatchingError(f"{' and '.join(chosen)} exclude each other: give one of them.")
        refuse({"images": images}, f"is for a file of pairs: with {chosen[0]}, give the folder itself.")
        if retrieval is not None:
            return source, retrieved_pairs(retrieval, source, neighbours)
        return source, exhaustive_pairs(source) if sequential is None else sequential_pairs(source, sequential)
    if os.path.isdir(source):
        raise DeepMatchingError(
            f"'{source}' is a folder: say which pairs of its images to match with --exhaustive, --sequential N or "
            "--retrieval FILE, or give a file of pairs."
        )
    if images is None:
        raise DeepMatchingError("A file of pairs needs the folder of the images: give it with --images.")
    return images, read_pairs(source, images)


class _Display(contextlib.ExitStack):
    """The display of a run's progress, and of how to continue it if it is interrupted."""

    progress: Progress

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out

    def started(self, progress: Progress) -> None:
        self.progress = progress
        if progress.before < progress.total:
            if progress.before:
                say(f"{progress.before} of {progress.total} pairs were finished before")
            self.push(self._left)
            self._advance = self.enter_context(progress_bar("pairs", progress.total, progress.before))

    def finished_shard(self, progress: Progress, report: ShardReport) -> None:
        from deepmatching.network.memory import amount

        text = f"{progress.rate:.3g} pairs/s, {len(progress.failures)} failed, {amount(report.memory)}"
        self._advance(text, report.pairs)

    def _left(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            done = self.progress.before + self.progress.done
            say(messages.unfinished(done, self.progress.total, "pairs", self._out))


def _summarize(run: RunFolder, progress: Progress) -> None:
    """Print what the run has, and write its failures to a file."""
    from deepmatching.io.files import remove_file, write_file
    from deepmatching.network.memory import amount

    content, count = run.content(), sum(map(run.plan.count, run.done))
    failures, matches = content.all_failures(), sum(content.matches.values())
    path = run.path / FAILURES
    if failures:
        lines = [[text.translate(messages.ESCAPES) for text in (*names, why)] for names, why in failures.items()]
        write_file(path, os.fsencode("".join("\t".join(line) + "\n" for line in lines)))  # names need not be text
    else:
        remove_file(path)
    rows = [
        ("images", str(len(run.plan.names))),
        ("pairs", f"{count} ({len(failures)} failed)" if failures else str(count)),
        ("matches", f"{matches} ({matches / max(1, count - len(failures)):.0f} a pair)"),
    ]
    if progress.done:
        rows += [
            ("probably wrong", f"{progress.doubtful} of {progress.done} pairs"),
            ("time", f"{duration(progress.elapsed)} for {counted(progress.done, 'pair')}, {progress.rate:.3g} pairs/s"),
            ("descriptions", f"{progress.described} instead of {2 * progress.done}"),
            ("memory", amount(progress.memory)),
        ]
    messages.print_rows(rows)
    if progress.searched:
        why = f"few matches were right within {RADIUS} px; --no-auto forbids it"
        say(f"matched {counted(progress.searched, 'pair')} again by a search at a reduced size, as {why}")
    for (name0, name1), reason in list(failures.items())[:_MAX_PRINTED_FAILURES]:
        say(f"failed: {name0} and {name1}: {reason}")
    if progress.doubtful > progress.done / 2:
        own = run.plan.settings
        is_searched = own.get("search") or (own.get("auto") and own.get("radius") is None)
        advice = "" if is_searched else "; if they show one scene turned or at other scales, --search finds more"
        say(f"warning: most pairs are probably wrong, as pictures of different places are{advice}")
    messages.say_written(path if failures else None, run.path)
