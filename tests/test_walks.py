"""The walks of docs/architecture.md: the modules that a command visits, in the order of their first call."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.fake_datasets import write_pairs

ROOT = Path(__file__).resolve().parents[1]

#: What runs in the process that is traced: the command line of each walk. Words in capitals are files of the test.
WALKS = {
    "match": ["match", "A", "B", "-o", "OUT/ab.npz", "--radius", "8", "--device", "cpu"],
    "flow": ["flow", "A", "B", "-o", "OUT/ab.flo", "--radius", "8", "--device", "cpu"],
    "train": [
        *("train", "quickstart", "data.train=PAIRS", "out=OUT/run", "steps=2", "data.crop=[64,64]"),
        *("data.batch=1", "validation.every=1", "checkpoint_every=1", "model.radius=8", "data.workers=0"),
    ],
}

#: What the page leaves out: kernels, which depend on the device, and what every command does.
LEFT_OUT = (
    *("cli", "errors", "extensions", "io.addresses", "kernels.", "progress", "settings"),
    *(f"commands.{name}" for name in ("machine", "messages", "options", "output")),
)

TRACER = """
import json, sys, threading
seen = {}
def is_imported(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False
def profile(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("deepmatching.") and name not in seen and not is_imported(frame):
        seen[name] = True
sys.argv = ["deepmatching", *json.loads(sys.argv[1])]
from deepmatching.cli import main
sys.setprofile(profile)
threading.setprofile(profile)
try:
    main()
finally:
    sys.setprofile(None)
    print("VISITED", json.dumps([name.removeprefix("deepmatching.") for name in seen]))
"""


def walk_on_the_page(name: str) -> list[str]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = re.search(rf"^\* \*\*{name}\*\*: (.*?)(?=^\* |^$)", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no walk '{name}'"
    return re.findall(r"`([\w.]+)`", found[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_the_walk_on_the_page_is_the_one_that_the_command_takes(name: str, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, count=1)
    words = {"A": str(tmp_path / "0_a.png"), "B": str(tmp_path / "0_b.png"), "PAIRS": str(pairs), "OUT": str(tmp_path)}
    arguments = [re.sub(r"\b(A|B|PAIRS|OUT)\b", lambda found: words[found[0]], word) for word in WALKS[name]]
    done = subprocess.run(
        [sys.executable, "-c", TRACER, json.dumps(arguments)], capture_output=True, text=True, encoding="utf-8"
    )
    visited = json.loads(done.stdout.rpartition("VISITED")[2] or "[]")
    assert visited, done.stderr
    assert walk_on_the_page(name) == [module for module in visited if not module.startswith(LEFT_OUT)]
