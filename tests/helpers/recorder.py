"""A watcher that records the events of a training run."""

import signal

from deepmatching.training.checkpoints import Progress
from deepmatching.training.config import Config
from deepmatching.training.log import Row
from deepmatching.training.loop import Outcome


class Recorder:
    """Records events, and interrupts the run after step ``stop_at``."""

    def __init__(self, stop_at: int = -1) -> None:
        self.events: list[str] = []
        self.validations: list[tuple[Row, bool]] = []
        self.stop_at = stop_at

    def started(self, config: Config, progress: Progress) -> None:
        self.events.append(f"started {progress.step}")

    def warned(self, sentence: str) -> None:
        self.events.append(sentence)

    def stepped(self, progress: Progress, fraction: float) -> None:
        self.events.append(f"step {progress.step}")
        if progress.step == self.stop_at:
            signal.raise_signal(signal.SIGINT)

    def logged(self, row: Row) -> None:
        self.events.append(f"logged {row['step']}")

    def validated(self, row: Row, is_best: bool) -> None:
        self.events.append(f"validated {row['step']}")
        self.validations.append((row, is_best))

    def stopped(self, outcome: Outcome) -> None:
        self.events.append("failed" if outcome.has_failed else "stopped")
