"""``deepmatching bench`` as a user runs it."""

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.speed import Case, measure, measure_program
from helpers.processes import run, started


@pytest.mark.slow
def test_bench_prints_and_writes_its_measurements(tmp_path: Path) -> None:
    arguments = "bench --size 128x96 --repeats 2 --threads 2 --device cpu --json"
    result = run(*arguments.split(), tmp_path / "b.json")
    assert result.returncode == 0, result.stderr
    assert "time / floor" in result.stdout
    measured = json.loads((tmp_path / "b.json").read_text())
    assert (measured["case"]["width"], measured["case"]["radius"]) == (128, 80)
    assert measured["threads"] == 2
    assert 0 < measured["best"] <= measured["time"]
    assert measured["ratio"] == measured["time"] / measured["floor"]
    whole = measured["whole_program"]
    assert whole["time"] > 0 and whole["peak"] > 150e6  # with the libraries


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what a program has cost")
def test_a_program_is_measured_whole_and_without_our_own_memory() -> None:
    own = bytearray(300_000_000)
    small, large = (measure_program([sys.executable, "-c", f"b'x' * {size}"], 1) for size in (1, 200_000_000))
    assert small.peak < 100e6 < large.peak - small.peak < 250e6 and len(own) > large.peak - small.peak
    with pytest.raises(DeepMatchingError, match=r"'false' failed \(exit code 1\)"):
        measure_program(["false"])
    with pytest.raises(DeepMatchingError, match="no-such-program"):
        measure_program(["no-such-program"])


@pytest.mark.parametrize("name", ["cv2", "json"])
def test_the_timing_process_runs_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [os.path.abspath(path) for path in sys.path if path])
    assert measure(Case("hog", 64, 48, radius=16, device="cpu"), repeats=1).peak >= 0
    assert not Path("executed").exists()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_the_timing_process_ends_with_the_command(end: str) -> None:
    with started("bench", "--size", "64x64", "--model", "hog", "--repeats", "1000000000", "--device", "cpu") as process:
        bench = psutil.Process(process.pid)
        while not (children := bench.children()):
            assert process.poll() is None
            time.sleep(0.05)
        getattr(process, end)()
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=120)
        assert not alive
