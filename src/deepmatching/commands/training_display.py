"""What a user sees of a training run: a progress bar, lines, a picture of the curves, TensorBoard."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from deepmatching.commands import progress as progress_lines
from deepmatching.commands.common import say
from deepmatching.drawing import write_image
from deepmatching.drawing.curves import draw_training_curves
from deepmatching.errors import DeepMatchingError
from deepmatching.training import Config, Outcome
from deepmatching.training import checkpoints as state
from deepmatching.training.checkpoints import RunFolder
from deepmatching.training.log import Row, TensorBoard, read_log


class Display:
    """Watches a run from the command line; see :class:`deepmatching.training.Watcher`."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("step {task.fields[step]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f} %"),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            expand=True,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.board: TensorBoard | None = None
        self.folder = RunFolder(".")
        self.loss, self.rate, self.accuracy, self.left = "", "", "", ""
        self.made: list[Path] = []  # what the run has besides its own files
        self.said = -math.inf
        self.begun, self.share_before = 0.0, math.nan  # when the first step was done, and what share it was

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()
        if self.made and not self.folder.state.exists():  # the run was discarded
            for path in self.made:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ what happens

    def started(self, config: Config, progress: state.Progress) -> None:
        self.folder = RunFolder(config.out)
        tensorboard = self.folder.path / "tensorboard"
        self.made = [path for path in (self._picture(), tensorboard) if not path.exists()]
        try:
            self.board = TensorBoard(tensorboard, progress.step)
        except ImportError:
            say("TensorBoard is not installed (pip install 'deepmatching[train]'): the log is log.csv alone")
        if progress.step:
            say(f"resuming {self.folder.path} at step {progress.step}")
        self.task = self.bar.add_task("", total=1.0, step=progress.step, text="validating …")
        self.bar.start()

    def warned(self, sentence: str) -> None:
        say(f"note: {sentence}")

    def stepped(self, progress: state.Progress, share: float) -> None:
        if math.isnan(self.share_before):  # the first step compiles kernels: time left is counted from its end
            self.begun, self.share_before = time.monotonic(), share
        done, spent = share - self.share_before, time.monotonic() - self.begun
        self.left = f"{_duration(spent * (1 - share) / done)} left" if done > 0 else ""
        assert self.task is not None
        self.bar.update(self.task, completed=min(share, 1.0), step=progress.step, text=self._text())

    def logged(self, row: Row) -> None:
        if "loss" in row:
            self.loss = f"loss {row['loss']:.4g}"
        self.rate = f"{row['steps_per_s']:.3g} steps/s"
        if self.board is not None:
            self.board.add(row)
        if not self.console.is_terminal and time.monotonic() - self.said > progress_lines.LINES_EVERY:
            self.said = time.monotonic()
            say(f"step {row['step']:.0f}  {self._text()}")

    def validated(self, row: Row, is_best: bool) -> None:
        self.accuracy = "acc " + " / ".join(f"{row[f'acc@{t}']:.1f}" for t in (2, 5, 10))
        line = f"step {row['step']:.0f}: acc@2/5/10 {self.accuracy.removeprefix('acc ')} %, EPE {row['epe']:.2f} px"
        self.console.print(line + (" (best so far)" if is_best else ""), highlight=False, soft_wrap=True)
        if self.board is not None:
            self.board.add({f"validation/{n}" if n != "step" else n: v for n, v in row.items() if n != "seconds"})
        self._draw()

    def stopped(self, outcome: Outcome) -> None:
        self.bar.stop()
        self._draw()
        if outcome.has_failed:
            say(f"all steps are kept; when that is put right, {self._how_to_go_on()}")
            return
        steps = f"{outcome.progress.step} steps in {_duration(outcome.progress.elapsed)}"
        if outcome.progress.skipped:
            steps += f", {outcome.progress.skipped} skipped because their gradient was not finite"
        if outcome.signal:
            say(f"interrupted after {steps}; {self._how_to_go_on()}")
            return
        say(steps)
        best = self.folder.best if self.folder.best.is_file() else self.folder.last
        for path in (best, self.folder.log, self._picture()):
            say(f"wrote {path}")

    # ------------------------------------------------------------------ helpers

    def _how_to_go_on(self) -> str:
        return f"go on with: deepmatching train {self.folder.config} --resume"

    def _text(self) -> str:
        return "  ".join(part for part in (self.loss, self.accuracy, self.rate, self.left) if part)

    def _picture(self) -> Path:
        return self.folder.path / "curves.png"

    def _draw(self) -> None:
        if rows := read_log(self.folder.log):
            try:
                write_image(self._picture(), draw_training_curves(rows))
            except (DeepMatchingError, OSError) as error:  # a picture is no reason to lose a run
                say(f"the curves could not be drawn: {error}")


def _duration(seconds: float) -> str:
    """'2 h 05 min', '3 min 20 s' or '12 s'."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
