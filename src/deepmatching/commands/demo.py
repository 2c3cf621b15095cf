"""``deepmatching demo``."""

import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from deepmatching.commands import messages, options
from deepmatching.commands.first_run import share_compilation
from deepmatching.commands.messages import say
from deepmatching.commands.options import option
from deepmatching.settings import MODEL


@options.command("device")
def demo(
    *,
    out: Path = option(Path("demo-output"), "Folder for the results; created if it is missing."),
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
) -> None:
    """Match the pair of images that comes with the package, compute its optical flow, and draw both."""
    from deepmatching.drawing import draw_displacement, write_image
    from deepmatching.io.files import new_folders

    names = ("matches.txt", "matches.png", "displacement.png", "scores.png", "flow.flo", "flow.png")
    images = files("deepmatching") / "data" / "demo"
    first, second = as_file(images / "bunny_0.jpg"), as_file(images / "bunny_1.jpg")
    with new_folders(out), first as image0, second as image1:
        options.check_outputs((out / name, str) for name in names)
        share_compilation()
        matcher = options.build_matcher(MODEL, settings, threads)
        start = time.perf_counter()
        matches = matcher.match(image0, image1)
        say(messages.match_summary(matches, time.perf_counter() - start, matcher))
        matches.save(out / "matches.txt")
        matches.draw(image0, image1, out / "matches.png")
        assert matches.size0 is not None
        keypoints0, keypoints1, _ = matches.numpy()
        write_image(out / "displacement.png", draw_displacement(keypoints0, keypoints1, *matches.size0))
        x, y = matches.keypoints0[matches.scores.argmax()].tolist()
        matcher.draw_scores(image0, image1, (x, y), out / "scores.png")
        start = time.perf_counter()
        result = matcher.flow(image0, image1).read()
        say(messages.flow_summary(result, time.perf_counter() - start))
        result.save(out / "flow.flo")
        result.draw(image0, image1, out / "flow.png")
    messages.say_written(*(out / name for name in names))
