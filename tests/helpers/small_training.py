"""Small pairs on disk, and a run that takes seconds."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.io.flow import write_flow
from deepmatching.training.config import Config
from deepmatching.training.config_file import read_config

SHIFTS = ((6, -4), (-3, 2), (0, 5), (4, 4))


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pairs of 64×96: smooth noise, and the same moved by ``SHIFTS``."""
    folder = tmp_path_factory.mktemp("pairs")
    entries = []
    for n, (x, y) in enumerate(SHIFTS):
        noise = np.random.default_rng(n).uniform(0, 255, (32, 43, 3)).astype(np.float32)
        picture = cv2.resize(noise, (129, 96), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)
        cv2.imwrite(str(folder / f"{n}_0.png"), picture[16:80, 16:112])
        cv2.imwrite(str(folder / f"{n}_1.png"), picture[16 - y : 80 - y, 16 - x : 112 - x])
        write_flow(folder / f"{n}.flo", np.full((64, 96, 2), (x, y), np.float32))
        entries.append({"image0": f"{n}_0.png", "image1": f"{n}_1.png", "flow": f"{n}.flo"})
    (folder / "pairs.json").write_text(json.dumps(entries))
    return folder / "pairs.json"


SMALL = """
device = "cpu"
steps = 6
log_every = 2
checkpoint_every = 2

[model]
descriptor = "compact"
radius = 8
levels = 1
settings = { dimensions = 6 }

[data]
crop = [32, 48]
batch = 1
workers = 0

[validation]
data = "train"
every = 3
radius = 8

[optimizer]
lr = 0.003
warmup = 0
"""


@pytest.fixture
def small(tmp_path: Path, manifest: Path) -> Path:
    """Return a config file of a run of six steps on the pairs; its folder is ``run`` beside it."""
    path = tmp_path / "small.toml"
    out, train = json.dumps(str(tmp_path / "run")), json.dumps(str(manifest))
    path.write_text(f"out = {out}\n" + SMALL.replace("[data]", f"[data]\ntrain = {train}"))
    return path


@pytest.fixture
def config_of(small: Path) -> Callable[..., Config]:
    """Return ``config_of("steps=3")``: the small config with changes."""
    return lambda *changes: read_config(small, changes)
