"""The code in README.md and docs/."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching.cli import main
from deepmatching.network.descriptors import VGG

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [code for language, code in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Return the command lines of a page, without the word ``deepmatching`` and what the shell does with the output."""
    found = []
    for line in "".join(blocks(page, "", "sh", "console")).replace("\\\n", " ").splitlines():
        line = line.replace("bulk … ", "bulk photos/ --exhaustive --out run/ ")
        line = line.removeprefix("torchrun --nproc_per_node 4 -m ")
        words = shlex.split(line, comments=True) if line.startswith("deepmatching ") else []
        if len(words) > 1 and not words[1].startswith("-"):
            found.append(words[1 : words.index(">")] if ">" in words else words[1:])
    return found


def run_here(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run a command, which must succeed, in this process."""
    monkeypatch.setattr(sys, "argv", ["deepmatching", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, shlex.join(words)


def write_vgg(path: Path) -> None:
    """Write weights of VGG that nobody trained."""
    torch.manual_seed(0)
    np.savez(path, **{name: tensor.numpy() for name, tensor in VGG().state_dict().items()})
