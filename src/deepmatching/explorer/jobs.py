"""Runs of the explorer, one after the other in a thread of their own, each cancellable by itself."""

import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from deepmatching.errors import OUT_OF_MEMORY, DeepMatchingError, is_out_of_memory
from deepmatching.explorer.pictures import Pair, Unknown
from deepmatching.explorer.results import STAGES, Begin, Result, RunSettings

#: Number of runs that are kept, with their descriptors; the oldest that have ended go. If none has, no more are taken.
MAX_RUNS = 8

State = Literal["waiting", "running", "done", "failed", "cancelled"]

#: Returns the result of a pair: ``results.compute`` with the device filled in.
Compute = Callable[[Pair, RunSettings, Begin], Result]


class Cancelled(Exception):
    """Raised to end a run that nobody waits for any more."""


class Busy(DeepMatchingError):
    """As many runs wait as are kept."""


class Run:
    """One pair with its settings, waiting, running or finished."""

    def __init__(self, pair: Pair, settings: RunSettings) -> None:
        self.id = secrets.token_hex(16)
        self.pair, self.settings = pair, settings
        self.state: State = "waiting"
        self.stage, self.fraction, self.error = "", 0.0, ""
        self.result: Result | None = None
        self.started = self.ended = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it waits or is being computed."""
        return self.state in ("waiting", "running")

    def begin(self, stage: str) -> None:
        """Note that a stage begins; ends the run here if it was cancelled."""
        if self.state == "cancelled":
            raise Cancelled
        self.fraction += STAGES.get(self.stage, 0.0)
        self.stage = stage

    def about(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        return {
            **{name: getattr(self, name) for name in ("id", "state", "stage", "fraction", "error")},
            **{"pair": self.pair.id, "settings": asdict(self.settings), "share": STAGES.get(self.stage, 0.0)},
            "seconds": (self.ended or time.perf_counter()) - self.started if self.started else 0.0,
        }


class Runs:
    """All runs. They are computed in order, so that tabs share the processor and nothing else."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self._kept: dict[str, Run] = {}
        self._waiting: queue.Queue[Run] = queue.Queue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="deepmatching-explore", daemon=True)

    def __getitem__(self, id: str) -> Run:
        with self._lock:
            if id not in self._kept:
                raise Unknown("The explorer no longer has this run: run it again.")
            run = self._kept[id] = self._kept.pop(id)  # the latest used is the last
            return run

    def start(self, pair: Pair, settings: RunSettings) -> Run:
        """Return a new run; or the finished one of the same pair and settings, if it is still kept.

        Raise :class:`Busy` if too many runs wait already.
        """
        with self._lock:
            kept = list(self._kept.values())
            for run in kept:
                if run.pair is pair and run.settings == settings and run.state == "done":
                    return run
            ended = [run for run in kept if not run.is_open]
            if len(kept) - len(ended) >= MAX_RUNS:
                raise Busy(f"The explorer is busy: {MAX_RUNS} runs wait already. Try again when one of them has ended.")
            for run in ended[: max(len(kept) + 1 - MAX_RUNS, 0)]:
                del self._kept[run.id]
            run = Run(pair, settings)
            self._kept[run.id] = run
            self._waiting.put(run)
            if not self._thread.is_alive():
                self._thread.start()
        return run

    def cancel(self, id: str) -> Run:
        """Cancel a run. It counts as ended at once; the stage that is being computed still runs to its end."""
        run = self[id]
        with self._lock:
            if run.is_open:
                run.state = "cancelled"
        return run

    def _work(self) -> None:
        while True:
            self._compute(self._waiting.get())

    def _compute(self, run: Run) -> None:
        with self._lock:
            if run.state != "waiting":
                return
            run.state, run.started = "running", time.perf_counter()
        state: State = "failed"
        try:
            run.result, state = self.compute(run.pair, run.settings, run.begin), "done"
        except Cancelled:
            return
        except DeepMatchingError as error:
            run.error = str(error)
        except Exception as error:  # the next run must not wait for ever
            run.error = OUT_OF_MEMORY if is_out_of_memory(error) else f"This failed: {type(error).__name__}: {error}"
        with self._lock:
            if run.state == "running":
                run.state, run.fraction, run.ended = state, 1.0, time.perf_counter()
