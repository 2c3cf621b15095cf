"""Compilation of the CPU kernels, and its announcement."""

import errno
import logging
import os
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import numba
import pytest
import torch
from numba.core.caching import IndexDataCacheFile

from deepmatching.kernels import first_run
from deepmatching.kernels.cpu import compilation
from deepmatching.kernels.cpu.matching.hog import _describe_bands
from deepmatching.network.descriptors import HOG


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Return a cache in the temporary folder. Of it, nothing has been said yet but that kernels are compiled."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "_said", set())
    monkeypatch.setattr(first_run, "at_compilation", [])
    monkeypatch.setattr(compilation, "announce_compilation", cache(compilation.announce_compilation.__wrapped__))
    compilation.announce_compilation()
    monkeypatch.setattr(logging.getLogger("deepmatching"), "propagate", True)


def double(x: int) -> int:
    return 2 * x


def run(x: float = 21) -> int:
    """Run a new kernel; return how often it was found in the cache."""
    compiled = compilation.kernel(double)
    assert compiled(x) == 2 * x
    return sum(compiled.stats.cache_hits.values())


def store(folder: Path) -> Path:
    """Return the file that a compiled kernel leaves in the cache."""
    run()
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    return file


def test_compilation_is_announced_once_and_only_where_the_cache_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deepmatching")
    compilation.announce_compilation.cache_clear()
    store(tmp_path)
    run(0.5)
    ((_, level, message),) = caplog.record_tuples
    assert level == logging.INFO and message.startswith("compiling the kernels for this machine")
    compilation.announce_compilation.cache_clear()
    assert run() and len(caplog.messages) == 1


def test_without_a_writable_cache_kernels_still_compile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere_to_write = RuntimeError("cannot cache function: no locator available for file")
    monkeypatch.setattr(compilation.FunctionCache, "__init__", Mock(side_effect=nowhere_to_write))
    caplog.set_level(logging.INFO, "deepmatching")
    compilation.announce_compilation.cache_clear()
    assert (run(), run()) == (0, 0)
    assert not list(tmp_path.rglob("*.nb*")) and len(caplog.messages) == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "bit"])
def test_a_damaged_cache_is_compiled_again_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    file = store(tmp_path)
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]
    file.write_bytes({"empty": b"", "cut": content[:middle], "other": b"no cache", "bit": flipped}[damage])
    assert (run(), run()) == (0, 1)  # the cache is good again
    (message,) = caplog.messages
    assert "are damaged" in message


@pytest.mark.skipif(os.name != "posix", reason="folders have no modes here")
@pytest.mark.parametrize("mode", [0o757, 0o777])
def test_code_in_a_folder_that_others_can_write_to_is_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    file = store(tmp_path)
    content = file.read_bytes()
    file.parent.chmod(mode)
    with monkeypatch.context() as patch:
        patch.setattr(compilation.pickle, "loads", lambda data: pytest.fail("code of others was loaded"))
        assert (run(), run()) == (0, 0)
    (message,) = caplog.messages
    assert str(file.parent) in message and file.read_bytes() == content
    file.parent.chmod(0o755)
    assert run()


def test_a_full_cache_costs_the_cache_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_open_for_write", Mock(side_effect=full))
        assert (run(), run()) == (0, 0)
    (message,) = caplog.messages
    assert message.startswith("compiled kernels cannot be stored in") and "No space left on device" in message
    store(tmp_path)


def test_machine_code_of_another_kernel_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = store(tmp_path).read_bytes()
    run(0.5)
    for file in tmp_path.rglob("*.nbc"):
        file.write_bytes(whole)
    run(0.5)
    assert "the checksum is wrong" in caplog.messages[0]


def test_processes_that_compile_at_once_do_not_write_the_same_file(tmp_path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in [store(tmp_path)]}
    run(0.5)  # the same kernel for another type
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb*")}
    assert len(files) == 2 and files.items() > before.items()


def test_machine_code_of_other_sources_is_out_of_date(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store(tmp_path)
    monkeypatch.setattr(compilation, "_sources", lambda: "a helper in another file has changed")
    assert (run(), run()) == (0, 1)
    assert store(tmp_path) == file  # in the same place
    assert not caplog.messages


def test_what_has_run_is_on_disk() -> None:
    HOG()(torch.rand(1, 1, 16, 16))
    if not hasattr(_describe_bands._cache, "_cache_file"):
        pytest.skip("no folder for Numba's cache is writable here")
    assert list(Path(_describe_bands._cache.cache_path).glob("hog._describe_bands-*.nbc"))
