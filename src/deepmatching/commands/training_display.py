"""The display of a training run: a progress bar, lines, the picture of the curves, TensorBoard."""

import math
import shutil
import time
from pathlib import Path

from rich.progress import BarColumn

from deepmatching.commands.messages import LINES_EVERY, duration, progress_display, say, say_written
from deepmatching.drawing import write_image
from deepmatching.drawing.curves import draw_training_curves
from deepmatching.errors import DeepMatchingError, counted
from deepmatching.settings import THRESHOLDS
from deepmatching.training import Config, Outcome
from deepmatching.training import checkpoints as state
from deepmatching.training.checkpoints import RunFolder
from deepmatching.training.log import Row, TensorBoard, read_log

_ACCURACIES = [f"acc@{threshold}" for threshold in THRESHOLDS]
_ACCURACY_NAMES = f"acc@{'/'.join(map(str, THRESHOLDS))}"


class Display:
    """Shows a run on the command line; see :class:`deepmatching.training.Watcher`."""

    def __init__(self) -> None:
        columns = "step {task.fields[step]}", BarColumn(), "{task.percentage:.0f} %", "{task.fields[text]}"
        self.bar = progress_display(*columns, transient=False)
        self.task = self.bar.add_task("", start=False, total=1.0, step=0, text="validating …")
        self.board: TensorBoard | None = None
        self.folder = RunFolder(".")
        self.texts: dict[str, str] = {}  # behind the bar: loss, accuracy, speed, time left
        self.created: list[Path] = []  # besides the run's own files
        self.last_line = -math.inf

    def close(self) -> None:
        """Stop the bar; remove what a discarded run leaves behind."""
        self._stop_bar()
        if self.board is not None:
            self.board.close()
        if not self.folder.state.exists():  # the run was discarded
            for path in self.created:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def started(self, config: Config, progress: state.Progress) -> None:
        self.folder = RunFolder(config.out)
        tensorboard = self.folder.path / "tensorboard"
        self.created = [path for path in (self._picture(), tensorboard) if not path.exists()]
        try:
            self.board = TensorBoard(tensorboard, progress.step)
        except ImportError:
            say("note: without TensorBoard (the extra 'train'), only log.csv is written")
        if progress.step:
            say(f"resuming {self.folder.path} at step {progress.step}")
        self.bar.update(self.task, step=progress.step)
        self.bar.start()

    def warned(self, sentence: str) -> None:
        say(f"note: {sentence}")

    def stepped(self, progress: state.Progress, fraction: float) -> None:
        task = self.bar.tasks[self.task]
        if not task.started:  # the first step compiles kernels: time is counted from its end
            self.bar.start_task(self.task)
            task.completed = min(fraction, 1.0)
        if task.time_remaining is not None:
            self.texts["left"] = f"{duration(task.time_remaining)} left"
        self.bar.update(self.task, completed=min(fraction, 1.0), step=progress.step, text=self._text())

    def logged(self, row: Row) -> None:
        if "loss" in row:
            self.texts["loss"] = f"loss {row['loss']:.4g}"
        self.texts["speed"] = f"{row['steps_per_s']:.3g} steps/s"
        if self.board is not None:
            self.board.add(row)
        if self.bar.disable and time.monotonic() - self.last_line > LINES_EVERY:
            self.last_line = time.monotonic()
            say(f"step {row['step']:.0f}  {self._text()}")

    def validated(self, row: Row, is_best: bool) -> None:
        accuracies = " / ".join(f"{row[name]:.1f}" for name in _ACCURACIES)
        self.texts["accuracy"] = f"acc {accuracies}"
        line = f"step {row['step']:.0f}: {_ACCURACY_NAMES} {accuracies} %, EPE {row['epe']:.2f} px"
        self.bar.console.print(line + (" (best so far)" if is_best else ""), highlight=False, soft_wrap=True)
        if self.board is not None:
            self.board.add({f"validation/{n}" if n != "step" else n: v for n, v in row.items() if n != "seconds"})
        self._draw()

    def stopped(self, outcome: Outcome) -> None:
        self._stop_bar()
        self._draw()
        resume = f"continue with: deepmatching train {self.folder.config} --resume"
        steps = f"{counted(outcome.progress.step, 'step')} in {duration(outcome.progress.elapsed)}"
        if outcome.progress.skipped:
            steps += f", {outcome.progress.skipped} skipped because their gradient was not finite"
        if outcome.has_failed:
            say(f"all steps are saved; once the error is corrected, {resume}")
        elif outcome.signal:
            say(f"interrupted after {steps}; {resume}")
        else:
            say(steps)
            best = self.folder.best if self.folder.best.is_file() else self.folder.last
            say_written(best, self.folder.log, self._picture())

    def _stop_bar(self) -> None:
        if not self.bar.disable:  # else older versions of rich print an empty line
            self.bar.stop()

    def _text(self) -> str:
        return "  ".join(self.texts[name] for name in ("loss", "accuracy", "speed", "left") if name in self.texts)

    def _picture(self) -> Path:
        return self.folder.path / "curves.png"

    def _draw(self) -> None:
        if rows := read_log(self.folder.log):
            try:
                write_image(self._picture(), draw_training_curves(rows))
            except (DeepMatchingError, OSError) as error:  # no reason to lose a run
                say(f"the curves could not be drawn: {error}")
