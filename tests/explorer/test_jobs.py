"""Runs wait for each other and are cancelled one by one."""

import queue
import threading
import time

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.explorer.jobs import Run, Runs
from deepmatching.explorer.pictures import Pair, Unknown
from deepmatching.explorer.results import STAGES, Begin, Result, RunSettings


class Steps:
    """A fake computation that goes on one stage at a time, when the test says so."""

    def __init__(self) -> None:
        self.reached: queue.Queue[tuple[RunSettings, str]] = queue.Queue()
        self.go_on = threading.Semaphore(0)
        self.ended: queue.Queue[RunSettings] = queue.Queue()

    def __call__(self, pair: Pair, settings: RunSettings, begin: Begin) -> Result:
        try:
            for stage in STAGES:
                begin(stage)
                self.reached.put((settings, stage))
                assert self.go_on.acquire(timeout=600)
            return f"result of {settings.model}"  # type: ignore[return-value]
        finally:
            self.ended.put(settings)


A, B, C = map(RunSettings, "abc")


def finish(steps: Steps, settings: RunSettings) -> None:
    """Let a run go on to its end."""
    for _ in STAGES:
        steps.go_on.release()
    assert steps.ended.get(timeout=600) == settings


def wait_for(run: Run) -> None:
    """Wait until a run is done, which is said right after its computation has ended."""
    while run.state != "done":
        time.sleep(0.001)


def test_a_run_tells_how_far_it_is(small_pair: Pair) -> None:
    steps = Steps()
    run = Runs(steps).start(small_pair, A)
    fractions = []
    for stage in STAGES:
        assert steps.reached.get(timeout=600) == (A, stage)
        about = run.about()
        assert (about["state"], about["stage"]) == ("running", stage)
        fractions.append(about["fraction"])
        steps.go_on.release()
    assert fractions == sorted(set(fractions)) and fractions[0] == 0 and fractions[-1] < 1
    assert sum(STAGES.values()) == pytest.approx(1)


def test_a_cancelled_run_ends_at_its_next_stage_and_the_next_one_begins(small_pair: Pair) -> None:
    steps = Steps()
    runs = Runs(steps)
    first, second = runs.start(small_pair, A), runs.start(small_pair, B)
    assert steps.reached.get(timeout=600) == (A, "model")
    assert second.state == "waiting"
    runs.cancel(first.id)
    assert first.state == "cancelled"
    steps.go_on.release()
    assert steps.ended.get(timeout=600) == A
    assert steps.reached.get(timeout=600) == (B, "model")
    assert (first.state, first.result) == ("cancelled", None)
    finish(steps, B)
    wait_for(second)
    assert second.result == "result of b"


def test_a_run_that_was_cancelled_while_it_waited_is_never_computed(small_pair: Pair) -> None:
    steps = Steps()
    runs = Runs(steps)
    _, second, _ = (runs.start(small_pair, settings) for settings in (A, B, C))
    runs.cancel(second.id)
    finish(steps, A)
    finish(steps, C)
    assert second.state == "cancelled"


def test_a_finished_run_is_not_computed_again_but_a_running_one_is_not_shared(small_pair: Pair) -> None:
    """Else, one tab would cancel the run of another."""
    steps = Steps()
    runs = Runs(steps)
    first = runs.start(small_pair, A)
    assert runs.start(small_pair, A) is not first
    finish(steps, A)
    wait_for(first)
    assert runs.start(small_pair, A) is first
    assert runs.cancel(first.id).state == "done"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DeepMatchingError("Use a smaller radius."), "Use a smaller radius."),
        (MemoryError(), "The memory ran out"),
        (RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_a_run_that_fails_says_why_and_the_next_one_is_computed(small_pair: Pair, error: Exception, words: str) -> None:
    failing = iter([True, False])

    def compute(pair: Pair, settings: RunSettings, begin: Begin) -> Result:
        if next(failing):
            raise error
        return "result"  # type: ignore[return-value]

    runs = Runs(compute)
    first, second = runs.start(small_pair, A), runs.start(small_pair, B)
    wait_for(second)
    assert first.state == "failed" and words in first.error


def test_an_unknown_run_is_reported() -> None:
    with pytest.raises(Unknown, match="run"):
        Runs(Steps()).cancel("x")
