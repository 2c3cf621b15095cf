from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.sequence import FlowFolder
from deepmatching.io.flow import read_flow

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
    assert later.outdated == ["b", "c"]
    later.add("b", FLOW)
    assert "b" in later and later.outdated == ["c"]


def test_a_file_that_is_not_in_the_record_is_not_finished(tmp_path: Path) -> None:
    FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    (tmp_path / "a.flo").write_bytes(b"of a run that was killed")
    assert "a" not in FlowFolder(tmp_path, ".flo", {}, ORIGINS)


def test_other_settings_are_refused_unless_all_is_done_again(tmp_path: Path) -> None:
    FlowFolder(tmp_path, ".flo", {"radius": 80, "preset": "default"}, ORIGINS).add("a", FLOW)
    before = (tmp_path / "flow.json").read_text()
    for suffix, settings, words in (
        (".flo", {"radius": 160, "preset": "default"}, "made with radius 80, and now it is 160"),
        (".png", {"radius": 80, "preset": "default"}, r"made with suffix '\.flo', and now it is '\.png'"),
        (".flo", {"radius": 80, "preset": "default", "edges": "x"}, "made with edges None"),
        (".flo", {"radius": 80}, "made with preset 'default', and now it is None"),
    ):
        with pytest.raises(DeepMatchingError, match=words):
            FlowFolder(tmp_path, suffix, settings, ORIGINS)
    assert (tmp_path / "flow.json").read_text() == before
    again = FlowFolder(tmp_path, ".flo", {"radius": 160}, ORIGINS, restart=True)
    assert "a" not in again
    assert json.loads((tmp_path / "flow.json").read_text())["settings"]["radius"] == 160


def test_files_of_another_origin_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "b.flo").write_bytes(b"the truth")
    for restart in (False, True):
        with pytest.raises(DeepMatchingError, match=r"another origin, 'b\.flo'"):
            FlowFolder(tmp_path, ".flo", {}, ORIGINS, restart)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.flo"]
    FlowFolder(tmp_path, ".flo", {}, {name: ORIGINS[name] for name in ("a", "c")})


def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for content in (
        "{",
        "[]",
        '{"settings": 3, "finished": []}',
        '{"settings": {}}',
        '{"settings": {}, "finished": 1}',
        '{"settings": {}, "finished": {"a": 1}}',
    ):
        (tmp_path / "flow.json").write_text(content)
        with pytest.raises(DeepMatchingError, match="no record of an earlier run"):
            FlowFolder(tmp_path, ".flo", {}, ORIGINS)
    FlowFolder(tmp_path, ".flo", {}, ORIGINS, restart=True)
