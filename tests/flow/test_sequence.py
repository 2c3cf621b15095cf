import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.result import FlowResult
from deepmatching.flow.sequence import FlowFolder, compute_flows, draw_flows, drawn_flows, ranges
from deepmatching.io.flow import read_flow
from deepmatching.io.images import load_image
from deepmatching.io.video import open_frames
from helpers.fake_datasets import texture, write_image

FLOW = np.ones((4, 5, 2), np.float32)
NAMES = ["a", "b", "c"]
ORIGINS = {"a": ["1", "2"], "b": ["2", "3"], "c": ["3", "4"]}


def test_a_later_run_knows_what_is_finished(tmp_path: Path) -> None:
    first = FlowFolder(tmp_path / "deep" / "out", ".flo", {"radius": 80}, ORIGINS)
    first.add("a", FLOW)
    first.add("c", FLOW)
    later = FlowFolder(tmp_path / "deep" / "out", ".flo", {"radius": 80}, ORIGINS)
    assert [name in later for name in NAMES] == [True, False, True]
    np.testing.assert_array_equal(read_flow(later.file("a")), FLOW)
    later.file("a").unlink()  # the record alone is not enough
    assert "a" not in later
    assert "a" not in FlowFolder(tmp_path / "deep" / "out", ".flo", {"radius": 80}, ORIGINS, restart=True)


def test_a_flow_of_other_frames_is_not_finished(tmp_path: Path) -> None:
    first = FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    for name in NAMES:
        first.add(name, FLOW)
    later = FlowFolder(tmp_path, ".flo", {}, {"a": ["1", "2"], "b": ["2", "3, changed"]})
    assert [name in later for name in NAMES] == [True, False, False]
    assert later.outdated == ["b", "c"] and later.missing == [1]
    later.add("b", FLOW)
    assert "b" in later and later.outdated == ["c"]


def test_a_file_that_is_not_in_the_record_is_not_finished(tmp_path: Path) -> None:
    FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    (tmp_path / "a.flo").write_bytes(b"of a run that was killed")
    assert "a" not in FlowFolder(tmp_path, ".flo", {}, ORIGINS)


def test_other_settings_are_refused_without_restart(tmp_path: Path) -> None:
    FlowFolder(tmp_path, ".flo", {"radius": 80, "preset": "default"}, ORIGINS).add("a", FLOW)
    before = (tmp_path / "flow.json").read_text()
    for suffix, settings, words in (
        (".flo", {"radius": 160, "preset": "default"}, "radius 80, and now it is 160"),
        (".png", {"radius": 80, "preset": "default"}, r'suffix "\.flo", and now it is "\.png"'),
        (".flo", {"radius": 80, "preset": "default", "edges": "x"}, "edges"),
        (".flo", {"radius": 80}, "preset"),
    ):
        with pytest.raises(DeepMatchingError, match=words):
            FlowFolder(tmp_path, suffix, settings, ORIGINS)
    assert (tmp_path / "flow.json").read_text() == before
    again = FlowFolder(tmp_path, ".flo", {"radius": 160}, ORIGINS, restart=True)
    assert "a" not in again
    assert json.loads((tmp_path / "flow.json").read_text())["settings"]["radius"] == 160


def test_files_that_no_earlier_run_made_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "b.flo").write_bytes(b"the truth")
    for restart in (False, True):
        with pytest.raises(DeepMatchingError, match=r"'b\.flo' in .* was not made by an earlier run"):
            FlowFolder(tmp_path, ".flo", {}, ORIGINS, restart)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.flo"]
    FlowFolder(tmp_path, ".flo", {}, {name: ORIGINS[name] for name in ("a", "c")})


def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    odd = ('{"settings": 3, "finished": []}', *(f'{{"settings": {{}}, "finished": {n}}}' for n in ("1", '{"a": 1}')))
    for content in ("{", "[]", '{"settings": {}}', *odd):
        (tmp_path / "flow.json").write_text(content)
        with pytest.raises(DeepMatchingError, match=re.escape(str(tmp_path))):
            FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    FlowFolder(tmp_path, ".flo", {}, ORIGINS, restart=True)


def test_ranges_join_consecutive_numbers() -> None:
    assert list(ranges([])) == []
    assert list(ranges([4])) == [(4, 5)]
    assert list(ranges([0, 1, 2, 5, 6, 9])) == [(0, 3), (5, 7), (9, 10)]


def test_only_missing_flows_are_computed_from_the_frames_around_them(tmp_path: Path) -> None:
    for number in range(6):
        write_image(tmp_path / "frames" / f"{number}.png", np.full((4, 5, 3), number, np.uint8))
    frames = open_frames(tmp_path / "frames")
    folder = FlowFolder(tmp_path / "out", ".npy", {}, frames.origins)
    folder.add("2", np.zeros((4, 5, 2), np.float32))
    calls: list[list[int]] = []

    def flow_sequence(images: Iterable[Tensor]) -> Iterator[FlowResult]:
        values = [round(255 * image.mean().item()) for image in images]
        calls.append(values)
        for value in values[:-1]:
            yield FlowResult(np.full((4, 5, 2), value, np.float32), np.ones((4, 5), np.float32))

    counted: list[int] = []
    compute_flows(frames, folder, flow_sequence, lambda: counted.append(len(folder.missing)))
    assert calls == [[0, 1, 2], [3, 4, 5]]
    assert counted == [3, 2, 1, 0]
    assert [read_flow(folder.file(str(number)))[0, 0, 0] for number in range(5)] == [0, 1, 0, 3, 4]


def test_pictures_of_a_sequence_share_one_colour_scale(tmp_path: Path) -> None:
    """Two frames with the same flow look the same, although the third flow is much larger."""
    for number in range(4):
        write_image(tmp_path / "frames" / f"{number}.png", texture())
    frames = open_frames(tmp_path / "frames")
    for name, largest in (("small", 1.0), ("large", 50.0)):
        folder = FlowFolder(tmp_path / name, ".flo", {}, frames.origins)
        for number, length in enumerate((1.0, 1.0, largest)):
            folder.add(str(number), np.full((64, 80, 2), length, np.float32))
        (tmp_path / f"{name}-pictures").mkdir()
        draw_flows(frames, folder, tmp_path / f"{name}-pictures")
    folders = (tmp_path / f"{name}-pictures" for name in ("small", "large"))
    small, large = ([load_image(folder / f"{number}.png") for number in range(3)] for folder in folders)
    assert small[0].equal(small[1]) and small[0].equal(small[2])
    assert large[0].equal(large[1]) and not large[0].equal(large[2])
    assert not large[0].equal(small[0])


def test_flows_are_drawn_while_frames_are_read_one_at_a_time(tmp_path: Path) -> None:
    for number in range(5):
        write_image(tmp_path / "frames" / f"{number}.png", np.full((64, 80, 3), 40 * number, np.uint8))
    read: list[int] = []

    def flow_sequence(images: Iterable[Tensor]) -> Iterator[FlowResult]:
        for number, image in enumerate(images):
            read.append(round(255 * image.mean().item()) // 40)
            if number:
                yield FlowResult(np.full((64, 80, 2), 2.0, np.float32), np.ones((64, 80), np.float32))

    counted: list[FlowResult] = []
    pictures = drawn_flows(open_frames(tmp_path / "frames"), flow_sequence, "above", counted.append)
    for number in range(4):
        picture = next(pictures)
        assert picture.shape == (128, 80, 3) and (picture[:64] == 40 * number).all()
        assert read == list(range(number + 2)) and len(counted) == number
    assert next(pictures, None) is None and len(counted) == 4


def test_a_flow_that_was_cut_short_is_not_finished(tmp_path: Path) -> None:
    first = FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    for name in NAMES:
        first.add(name, FLOW)
    first.file("a").write_bytes(b"")
    first.file("b").write_bytes(first.file("b").read_bytes()[:-1])
    assert FlowFolder(tmp_path, ".flo", {}, ORIGINS).missing == [0, 1]
    record = json.loads((tmp_path / "flow.json").read_text())
    del record["sizes"]  # of an older version
    (tmp_path / "flow.json").write_text(json.dumps(record))
    assert FlowFolder(tmp_path, ".flo", {}, ORIGINS).missing == [0]
