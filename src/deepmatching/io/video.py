"""Frames of a video file, or of a folder of pictures in natural order."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.images import load_image

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".webp")


class BadFrame(DeepMatchingError):
    """One picture of a folder is at fault: without it, or with another, the others serve."""


class Frames:
    """Frames in order: ``len``, names, and the pictures themselves, read when they are needed.

    Attributes:
        path: the folder or the video.
        names: one for each frame, unique.
        rate: frames in a second, or None where the source does not say.
        missing: frames that the source promises and that cannot be read.
        stamps: of the file of each frame, or of the one file of all: its name, size and time of change.
    """

    def __init__(
        self, path: Path, names: list[str], stamps: list[str], rate: float | None = None, missing: int = 0
    ) -> None:
        self.path, self.names, self.stamps, self.rate, self.missing = path, names, stamps, rate, missing

    def __len__(self) -> int:
        return len(self.names)

    def origin(self, index: int) -> list[str]:
        """The stamps of the files that frame ``index`` and the next one are from."""
        return self.stamps[index : index + 2] if len(self.stamps) > 1 else self.stamps

    def between(self, first: int, end: int) -> Iterator[Tensor]:
        """Frames first, …, end − 1 as (C, H, W) in [0, 1].

        Raises:
            BadFrame: naming the frame, where it cannot be read or differs in size from the one before.
            DeepMatchingError: where a video cannot be read.
        """
        size: tuple[int, int] | None = None
        for index, frame in zip(range(first, end), self._read(first, end), strict=True):
            found = frame.shape[1], frame.shape[2]
            if size is not None and found != size:
                raise BadFrame(
                    f"Frame '{self.names[index]}' of '{self.path}' is {found[1]}x{found[0]} pixels, but the one before "
                    f"is {size[1]}x{size[0]}; all frames must be of one size."
                )
            size = found
            yield frame

    def _read(self, first: int, end: int) -> Iterator[Tensor]:
        raise NotImplementedError


class FolderFrames(Frames):
    """The pictures of a folder; a frame has the name of its file, without the suffix."""

    def __init__(self, path: Path) -> None:
        files = sorted(
            (
                file
                for file in path.iterdir()
                if file.suffix.lower() in PICTURES and not file.name.startswith(".") and file.is_file()
            ),
            key=lambda file: natural_order(file.name),
        )
        if not files:
            raise DeepMatchingError(
                f"The folder '{path}' holds no pictures ({', '.join(PICTURES)}); give a folder of frames or a video."
            )
        by_name: dict[str, Path] = {}
        for file in files:
            other = by_name.setdefault(file.stem, file)
            if other is not file:
                raise DeepMatchingError(
                    f"'{path}' holds two frames of one name, '{other.name}' and '{file.name}'; leave one of them."
                )
        super().__init__(path, list(by_name), [_stamp(file) for file in files])
        self.files = files

    def _read(self, first: int, end: int) -> Iterator[Tensor]:
        for file in self.files[first:end]:
            try:
                frame = load_image(file, "frame")
            except DeepMatchingError as error:
                raise BadFrame(str(error)) from error
            yield frame


class VideoFrames(Frames):
    """The frames of a video file, named frame_0001, frame_0002, …"""

    def __init__(self, path: Path) -> None:
        capture = _open(path)
        count = 0
        while capture.grab():  # what the header says of their number is often an estimate
            count += 1
        promised = int(max(0.0, min(capture.get(cv2.CAP_PROP_FRAME_COUNT), 1e9)))
        rate = float(capture.get(cv2.CAP_PROP_FPS))
        capture.release()
        names = [f"frame_{number:04d}" for number in range(1, count + 1)]
        super().__init__(path, names, [_stamp(path)], rate if 0 < rate < 1000 else None, max(0, promised - count))

    def _read(self, first: int, end: int) -> Iterator[Tensor]:
        capture = _open(self.path)
        try:
            for _ in range(first):
                capture.grab()
            for index in range(first, end):
                there, bgr = capture.read()
                if not there:
                    raise DeepMatchingError(
                        f"Frame '{self.names[index]}' of '{self.path}' cannot be read; convert the video again."
                    )
                yield load_image(np.ascontiguousarray(bgr[:, :, ::-1]), f"frame '{self.names[index]}'")
        finally:
            capture.release()


def open_frames(path: str | os.PathLike[str]) -> Frames:
    """The frames of a folder or of a video file; at least two."""
    path = Path(path)
    if path.is_dir():
        frames: Frames = FolderFrames(path)
    elif path.suffix.lower() in PICTURES:
        raise DeepMatchingError(f"'{path}' is one picture; give a second one, a folder of frames or a video.")
    else:
        frames = VideoFrames(path)
    if len(frames) < 2:
        raise DeepMatchingError(f"'{path}' holds {len(frames)} frame; flow is between two, so give at least two.")
    return frames


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts frame_2 before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    return [(1, int(part), part) if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


def _stamp(file: Path) -> str:
    """What tells a file from another that replaces it."""
    about = file.stat()
    return f"{file.name}, {about.st_size} bytes, {about.st_mtime_ns} ns"


@contextlib.contextmanager
def _quiet_ffmpeg() -> Iterator[None]:
    """Keep FFmpeg, which OpenCV starts with the first video, from writing its own messages about files we report on."""
    name = "OPENCV_FFMPEG_LOGLEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "-8"
    try:
        yield
    finally:
        del os.environ[name]


def _open(path: Path) -> cv2.VideoCapture:
    if not path.is_file():
        raise DeepMatchingError(f"There is no video or folder '{path}'; check the path.")
    with _quiet_ffmpeg():
        capture = cv2.VideoCapture(os.fspath(path))
    if not capture.isOpened():
        raise DeepMatchingError(
            f"'{path}' cannot be opened as a video by OpenCV; convert it, or give a folder with its frames."
        )
    return capture
