"""A watcher of a training run that remembers what it is told."""

from __future__ import annotations

import os
import signal

from deepmatching.training.checkpoints import Progress
from deepmatching.training.config import Config
from deepmatching.training.log import Row
from deepmatching.training.run import Outcome


class Recorder:
    """Remembers what it is told, and sends signals when asked to."""

    def __init__(self, stop_at: int = -1) -> None:
        self.events: list[str] = []
        self.validations: list[tuple[Row, bool]] = []
        self.stop_at = stop_at

    def started(self, config: Config, progress: Progress) -> None:
        self.events.append(f"started {progress.step}")

    def warned(self, sentence: str) -> None:
        self.events.append(sentence)

    def stepped(self, progress: Progress, share: float) -> None:
        self.events.append(f"step {progress.step}")
        if progress.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    def logged(self, row: Row) -> None:
        self.events.append(f"logged {row['step']}")

    def validated(self, row: Row, is_best: bool) -> None:
        self.events.append(f"validated {row['step']}")
        self.validations.append((row, is_best))

    def stopped(self, outcome: Outcome) -> None:
        self.events.append("failed" if outcome.has_failed else "stopped")
