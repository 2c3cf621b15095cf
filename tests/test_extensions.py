"""Code of other packages is found by its import path, and imported by nothing but the user."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.data.datasets import open_dataset
from deepmatching.errors import DeepMatchingError
from deepmatching.io.weights import read_safetensors, write_safetensors
from deepmatching.models import build_network, load_network, save_network
from deepmatching.network.descriptors import HOG
from deepmatching.network.losses import Objective
from deepmatching.training import read_config, train

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "extension"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of the example's module, imported as a user does."""
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.import_module("tiny_extension").__name__


@pytest.fixture
def folder(manifest: Path) -> Path:
    lines = "".join(f"{n}_0.png {n}_1.png {n}.flo\n" for n in range(4))
    for split in ("train", "val"):
        (manifest.parent / f"{split}.txt").write_text(lines)
    return manifest.parent


@pytest.mark.slow
def test_a_model_of_foreign_parts_is_trained_saved_and_used(tiny: str, folder: Path, tmp_path: Path) -> None:
    parts = (f"model.descriptor={tiny}:Tiny", "model.settings.channels=8", f"loss.kind={tiny}:fixed_scale")
    data = (f"data.train={tiny}:Listed", f"data.root={folder}", "data.crop=[32, 48]", "data.workers=1", "device=cpu")
    more = ("model.init=", "model.radius=8", f"model.pooling={tiny}:OneTemperature", "validation.data=train", "steps=3")
    config = read_config("quickstart", [*parts, *data, *more, "optimizer.warmup=0", f"out={tmp_path}"])
    train(config, torch.device("cpu"))
    path = tmp_path / "last.safetensors"
    tensors, metadata = read_safetensors(path)
    assert (metadata["descriptor"], metadata["pooling"]) == (f"{tiny}:Tiny", f"{tiny}:OneTemperature")
    assert tensors["own_pooling.log_temperature"] != 4
    matcher = dm.DeepMatcher.from_pretrained(path, radius=8, device="cpu")
    pair = open_dataset(f"{tiny}:Listed", folder, limit=1)[0]
    assert len(matcher.match(pair.image0, pair.image1))

    command = ["match", str(folder / "0_0.png"), str(folder / "0_1.png"), "--model", str(path), "--radius", "8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(EXAMPLE)])}
    for options, code in (([], 2), (["--plugin", tiny], 0)):
        call = [sys.executable, "-m", "deepmatching", *options, *command]
        result = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stderr
        assert bool(result.stdout) == (code == 0) == ("--plugin" not in result.stderr)


@pytest.mark.parametrize(("token", "size"), [(14, (112, 168)), (16, (96, 160)), (14, (100, 150))])
def test_features_of_a_transformer_are_resampled_to_cells(
    tiny: str, tmp_path: Path, rng: np.random.Generator, token: int, size: tuple[int, int]
) -> None:
    network = build_network(f"{tiny}:Tokens", radius=48, token=token)
    save_network(network, tmp_path / "tokens.safetensors")
    matcher = dm.DeepMatcher.from_pretrained(tmp_path / "tokens.safetensors", radius=48, device="cpu")
    image = cv2.resize(rng.integers(0, 256, (12, 16, 3), np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC)
    moved = matcher.match(image, np.roll(image, 2 * token, axis=1)).displacements
    assert len(moved) >= 10 and (moved.median(dim=0).values - torch.tensor([2.0 * token, 0.0])).norm() <= 4


def test_a_path_in_a_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "model.safetensors"
    save_network(build_network("hog"), path)
    tensors, metadata = read_safetensors(path)
    for key in ("descriptor", "pooling"):
        for name, says in (("evil:Evil", "has not been imported: if you trust it"), ("os:nothing", "has no 'nothing'")):
            write_safetensors(path, tensors, {**metadata, key: name})
            with pytest.raises(DeepMatchingError, match=says):
                load_network(path)
    write_safetensors(path, tensors, {**metadata, "descriptor": "os:getcwd"})
    with pytest.raises(DeepMatchingError, match="not a subclass of Descriptor"):
        load_network(path)
    with pytest.raises(DeepMatchingError, match="not been imported"):
        Objective("evil:Evil")
    with pytest.raises(DeepMatchingError, match="not been imported"):
        open_dataset("evil:Evil")
    assert not (tmp_path / "executed").exists()
    monkeypatch.setenv("DEEPMATCHING_PLUGINS", "missing_plugin")
    with pytest.raises(DeepMatchingError, match="'missing_plugin' cannot be imported"):
        Objective("evil:Evil")


def test_a_class_that_cannot_be_imported_again_cannot_be_saved(tmp_path: Path) -> None:
    class Local(HOG):
        pass

    with pytest.raises(DeepMatchingError, match="Local cannot be saved"):
        save_network(dm.Network(Local()), tmp_path / "model.safetensors")
