"""``deepmatching explore``."""

import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from deepmatching.commands.explore import has_screen
from helpers.explorer import QUICK_SERVER, Server
from helpers.processes import started


@pytest.mark.slow
def test_a_page_is_exported_without_the_extra(
    pictures: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    for name in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    page = tmp_path / "page.html"
    printed = command("explore", *pictures, "--model", "hog", "--radius", "16", "--export", page)
    assert f"wrote {page}" in printed
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    polygon = "0,0 40,0 40,40"
    command("explore", *pictures, "--model", "hog", "--radius", "16", "--export", page, "--mask1", polygon)
    assert f'"mask_names":["","{polygon}"]' in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the interrupt key is no signal there")
def test_the_interrupt_key_ends_the_explorer_and_removes_its_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("explore", *QUICK_SERVER) as process:
        server = Server(process)
        assert server.address.startswith("http://127.0.0.1:")
        folders = list(tmp_path.glob("deepmatching-explore-*"))
        assert len(folders) == 1
        with urllib.request.urlopen(server.address) as page:  # it heeds the signal once it answers
            assert page.status == 200
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read().strip() == "the explorer has ended"
        assert process.wait() == 0
    assert not folders[0].exists()


def test_without_a_screen_no_browser_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_screen()
