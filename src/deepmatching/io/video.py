"""Frames from a video file or from a folder of pictures; writing a video."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from deepmatching.errors import DeepMatchingError, counted
from deepmatching.io.files import VIDEO_ENDS, atomic_write
from deepmatching.io.image_files import PICTURE_SUFFIXES, quiet_opencv
from deepmatching.io.images import load_image, size_of

CODECS = {".mp4": "mp4v", ".avi": "MJPG"}  #: suffixes of the videos that can be written, and their codecs


class BadFrame(DeepMatchingError):
    """One picture of a folder cannot be used; the others can."""


@dataclass
class Frames:
    """Frames in order: their names, and their pictures, which are read when they are needed."""

    path: Path  #: the folder or the video
    names: list[str]  #: one per frame, unique
    stamps: list[str]  #: name, size and time of change of each frame's file, or of the one file of all frames
    read: Callable[[int, int], Iterator[Tensor]]  #: yields frames first, …, end − 1 as (C, H, W) in [0, 1]
    rate: float | None = None  #: frames per second, or None if the source does not say
    missing: int = 0  #: number of frames that the source announces but that cannot be read

    def __len__(self) -> int:
        return len(self.names)

    @property
    def origins(self) -> dict[str, list[str]]:
        """The stamps of the files that each frame except the last, and the frame after it, come from."""
        per_frame = len(self.stamps) > 1
        return {n: self.stamps[i : i + 2] if per_frame else self.stamps for i, n in enumerate(self.names[:-1])}

    def between(self, first: int, end: int) -> Iterator[Tensor]:
        """Read frames first, …, end − 1 as (C, H, W) in [0, 1]; BadFrame if one differs in size from the one before."""
        size: tuple[int, int] | None = None
        for name, frame in zip(self.names[first:end], self.read(first, end), strict=True):
            found = size_of(frame)
            if size is not None and found != size:
                raise BadFrame(
                    f"Frame '{name}' of '{self.path}' is {found[1]}x{found[0]} pixels, but the one before is "
                    f"{size[1]}x{size[0]}; all frames must have the same size."
                )
            size = found
            yield frame


def open_frames(path: str | os.PathLike[str], bit_depth: int | None = None) -> Frames:
    """Open the frames of a folder or of a video file; raise if there are fewer than two.

    ``bit_depth`` is that of pictures with 16 bits; frames of a video have 8.
    """
    path = Path(path)
    if not os.path.isdir(path) and path.suffix.lower() in PICTURE_SUFFIXES:
        raise DeepMatchingError(f"'{path}' is a single picture; give a second one, a folder of frames or a video.")
    frames = _open_folder(path, bit_depth) if os.path.isdir(path) else _open_video(path)
    if len(frames) < 2:
        held = counted(len(frames), "frame")
        raise DeepMatchingError(f"'{path}' holds {held}, but at least two are needed; add frames.")
    return frames


def _open_folder(path: Path, bit_depth: int | None) -> Frames:
    """Return the pictures of a folder in natural order, each named after its file without the suffix."""
    files = [file for file in path.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES and file.is_file()]
    files = sorted((f for f in files if not f.name.startswith(".")), key=lambda file: natural_order(file.name))
    if not files:
        kinds = ", ".join(PICTURE_SUFFIXES)
        raise DeepMatchingError(f"The folder '{path}' holds no pictures ({kinds}); give one of frames, or a video.")
    by_name: dict[str, Path] = {}
    for file in files:
        other = by_name.setdefault(file.stem, file)
        if other is not file:
            both = f"'{other.name}' and '{file.name}'"
            raise DeepMatchingError(f"'{path}' holds two frames with the same name, {both}; remove one.")

    def read(first: int, end: int) -> Iterator[Tensor]:
        for file in files[first:end]:
            try:
                frame = load_image(file, "frame", bit_depth)
            except DeepMatchingError as error:
                raise BadFrame(str(error)) from error
            yield frame

    return Frames(path, list(by_name), [named_stamp(file) for file in files], read)


def _open_video(path: Path) -> Frames:
    """Return the frames of a video file, named frame_0001, frame_0002, …"""
    capture = _open(path)
    count = sum(1 for _ in iter(capture.grab, False))  # the number in the header is often an estimate
    announced = int(max(0.0, min(capture.get(cv2.CAP_PROP_FRAME_COUNT), 1e9)))
    rate = float(capture.get(cv2.CAP_PROP_FPS))
    capture.release()
    names = [f"frame_{number:04d}" for number in range(1, count + 1)]

    def read(first: int, end: int) -> Iterator[Tensor]:
        capture = _open(path)
        try:
            for _ in range(first):
                capture.grab()
            for name in names[first:end]:
                there, bgr = capture.read()
                if not there:
                    raise DeepMatchingError(f"Frame '{name}' of '{path}' cannot be read; convert the video again.")
                yield load_image(np.ascontiguousarray(bgr[:, :, ::-1]), f"frame '{name}'")
        finally:
            capture.release()

    return Frames(path, names, [named_stamp(path)], read, rate if 0 < rate < 1000 else None, max(0, announced - count))


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts frame_2 before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    return [(1, int(part), part) if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


def named_stamp(file: Path) -> str:
    """Return the name, size and time of a file, which tell it from one that replaces it."""
    about = file.stat()
    return f"{file.name}, {about.st_size} bytes, {about.st_mtime_ns} ns"


@contextlib.contextmanager
def _quiet_ffmpeg() -> Iterator[None]:
    """Silence FFmpeg, which OpenCV loads with the first video: we report unreadable files ourselves."""
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
    if not os.path.isfile(path):
        raise DeepMatchingError(f"There is no video or folder '{path}'; check the path.")
    with _quiet_ffmpeg(), quiet_opencv():
        capture = cv2.VideoCapture(os.fspath(path))
    if not capture.isOpened():
        raise DeepMatchingError(f"'{path}' cannot be opened as a video; convert it, or give a folder with its frames.")
    return capture


def write_video(path: Path, pictures: Iterable[np.ndarray], rate: float | None = None) -> None:
    """Write uint8 RGB pictures (H, W, 3) as a video in the format of the suffix, at 12 frames per second by default.

    OpenCV does not report when a disk is full. The video is therefore read again before it replaces an older one.
    """
    code, writer, count = cv2.VideoWriter.fourcc(*CODECS[path.suffix.lower()]), cv2.VideoWriter(), 0
    with atomic_write(path) as temporary:
        try:
            for picture in pictures:
                if not count:
                    with _quiet_ffmpeg(), quiet_opencv():
                        writer.open(str(temporary), code, rate or 12.0, picture.shape[1::-1])
                    if not writer.isOpened():
                        advice = "give --draw a folder for pictures instead"
                        raise DeepMatchingError(f"OpenCV cannot write the video '{path}' here: {advice}.")
                writer.write(np.ascontiguousarray(picture[:, :, ::-1]))
                count += 1
        finally:
            writer.release()
        with temporary.open("ab") as file:
            file.write(VIDEO_ENDS[path.suffix.lower()])
        if count and not _is_whole(temporary, count):
            reason = f"OpenCV did not write all of its {count} frames"
            raise DeepMatchingError(f"Cannot write '{path}': {reason}; free some space or write to another disk.")


def _is_whole(path: Path, count: int) -> bool:
    """Return whether the outer chunks of an AVI file, or the boxes of an MP4 file, fill it, and it has these frames."""
    is_avi, size, position = path.suffix.lower() == ".avi", path.stat().st_size, 0
    with open(path, "rb") as file:
        while position + 8 <= size:
            file.seek(position)
            head = file.read(16)
            if is_avi:
                length = 8 + int.from_bytes(head[4:8], "little")
            else:
                length = int.from_bytes(head[:4], "big")
                length = int.from_bytes(head[8:], "big") if length == 1 else length
            if length < 8:
                return False
            position += length
    with contextlib.suppress(DeepMatchingError):
        return position == size > 0 and len(_open_video(path)) == count
    return False
