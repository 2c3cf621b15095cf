"""What is saved comes back to the last bit, and what does not fit is refused before anything changes."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from deepmatching.errors import DeepMatchingError
from deepmatching.io.store import lock_folder
from deepmatching.models import load_network
from deepmatching.training import train
from deepmatching.training.checkpoints import Progress, RunFolder, _tensors
from deepmatching.training.config import Config
from deepmatching.training.model import build_model
from deepmatching.training.optimization import Learner

CPU = torch.device("cpu")
Configs = Callable[..., Config]
Tensors = dict[str, torch.Tensor]


def learner_of(config: Config, steps: int = 0) -> Learner:
    """Return the learner of a config after some steps of noise."""
    torch.manual_seed(steps)
    learner = Learner(build_model(config.model, config.loss), config)
    for _ in range(steps):
        for parameter in learner.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        learner.optimizer.step()
        if learner.average:
            learner.average.update(config.ema)
    return learner


def tensors_of(learner: Learner) -> Tensors:
    return {n: t.clone() for n, t in _tensors(learner).items()}


@pytest.mark.parametrize(
    "changes", [("ema=0.9",), ("optimizer.name=sgd",), ("optimizer.name=sgd", "optimizer.momentum=0")]
)
def test_a_state_comes_back_to_the_last_bit(config_of: Configs, changes: tuple[str, ...]) -> None:
    config = config_of(*changes)
    folder = RunFolder(config.out)
    folder.path.mkdir()
    before = learner_of(config, steps=3)
    progress = Progress(3, 1.5, 1, 0, {"loss": 0.1}, 3, 2, {"acc@2": 0.5})
    folder.save_state(config, 1, before, progress)
    after = learner_of(config)
    assert folder.load_state(config, 1, after) == progress
    saved, loaded = tensors_of(before), tensors_of(after)
    assert saved.keys() == loaded.keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, loaded[name]) and tensor.stride() == loaded[name].stride(), name
    # … and so does the next step.
    for parts in (before, after):
        for n, parameter in enumerate(parts.model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * n)
        parts.optimizer.step()
    assert all(torch.equal(t, tensors_of(after)[name]) for name, t in tensors_of(before).items())


def saved_run(config: Config) -> RunFolder:
    train(config, CPU)
    return RunFolder(config.out)


def rewrite_state(folder: RunFolder, tensors: Tensors | None = None, **metadata: str) -> None:
    """Replace the tensors of a state, if given, and some of its metadata."""
    with safe_open(folder.state, framework="pt") as file:
        before = file.metadata()
    save_file(load_file(folder.state) if tensors is None else tensors, folder.state, {**before, **metadata})


def metadata_of(folder: RunFolder, key: str) -> Any:
    with safe_open(folder.state, framework="pt") as file:
        return json.loads(file.metadata()[key])


def contents(folder: RunFolder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.path.iterdir() if file.is_file()}


def test_what_does_not_fit_is_refused_and_nothing_changes(config_of: Configs) -> None:
    config = config_of("steps=2", "validation.data=[]")
    folder = saved_run(config)
    before = contents(folder)
    cases = [
        ((), False, "--resume"),
        (("optimizer.lr=0.5",), True, r"optimizer\.lr 0\.003, and now it is 0\.5"),
        (("model.settings.dimensions=9",), True, r"model\.settings\.dimensions 6"),
        (("loss.weights.S0=1",), True, r"without loss\.weights\.S0"),
        (("accumulate=2",), True, "processes x accumulate 1, and now it is 2"),
        (("seed=7",), True, "seed 0"),
    ]
    for changes, resume, says in cases:
        with pytest.raises(DeepMatchingError, match=says) as raised:
            train(config_of("steps=2", "validation.data=[]", *changes), CPU, resume)
        assert "\n" not in str(raised.value)
        assert contents(folder) == before


def damage(folder: RunFolder, kind: str) -> None:
    """Spoil the state of a run."""
    whole, tensors = folder.state.read_bytes(), load_file(folder.state)
    moment = next(name for name in tensors if name.startswith("optimizer.0.") and tensors[name].ndim)
    weights = next(name for name in tensors if name.startswith("model.") and tensors[name].ndim > 1)
    files = {"cut": whole[: len(whole) // 2], "text": b"weights", "empty": b"", "other": folder.last.read_bytes()}
    added = {
        "shape": {moment: tensors[moment][:1].clone()},
        "beyond": {"optimizer.99.exp_avg": tensors[moment].clone()},
        "unnamed": {"optimizer.x": tensors[moment].clone()},
        "nan": {weights: tensors[weights] * torch.nan},
        "extra": {"model.network.sharpness": torch.ones(())},
    }
    if kind in files:
        folder.state.write_bytes(files[kind])
    elif kind in METADATA:
        rewrite_state(folder, **{kind: METADATA[kind]})
    elif kind in DAMAGED_PROGRESS:
        rewrite_state(folder, progress=json.dumps(metadata_of(folder, "progress") | DAMAGED_PROGRESS[kind]))
    elif kind == "tensors":
        rewrite_state(folder, {"model.network.exponents": torch.ones(3)})
    else:
        tensors = {n: t for n, t in {**tensors, **added.get(kind, {})}.items() if "lost" not in kind or n != moment}
        of_optimizer = json.dumps(sorted(name for name in tensors if name.startswith("optimizer.")))
        rewrite_state(folder, tensors, **({} if kind == "lost" else {"optimizer_tensors": of_optimizer}))


METADATA = {"progress": "[" * 100_000, "processes": "two", "config": "1", "format": "other", "optimizer_tensors": "{"}
DAMAGED_PROGRESS = {
    **{f"step {value}": {"step": value} for value in ("two", -1)},
    **{"elapsed": {"elapsed": None}, "sums": {"sums": [1]}, "metrics": {"metrics": {"epe": "small"}}},
}
DAMAGES = {
    **dict.fromkeys(("cut", "text", "empty"), "cannot be read"),
    **dict.fromkeys(("tensors", "extra"), "another architecture"),
    "nan": "NaN or infinite numbers in model",
    **dict.fromkeys(("other", "lost", "lost with its record", "beyond", "unnamed", "shape"), "is damaged"),
    **dict.fromkeys((*METADATA, *DAMAGED_PROGRESS), "is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_state_is_one_sentence_and_stays_as_it_is(config_of: Configs, kind: str) -> None:
    folder = saved_run(config_of("steps=2", "validation.data=[]"))
    damage(folder, kind)
    before = contents(folder)
    with pytest.raises(DeepMatchingError, match=DAMAGES[kind]) as raised:
        train(config_of("steps=3", "validation.data=[]"), CPU, resume=True)
    assert "\n" not in str(raised.value)
    assert contents(folder) == before


def test_a_run_killed_at_its_first_save_can_be_resumed(config_of: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    save = RunFolder.save_model

    def save_and_die(*arguments: Any) -> None:
        save(*arguments)
        raise SystemExit

    monkeypatch.setattr(RunFolder, "save_model", save_and_die)
    with pytest.raises(SystemExit):
        train(config_of(), CPU)
    monkeypatch.undo()
    assert train(config_of(), CPU, resume=True).progress.step == 6


def test_a_state_needs_no_model_beside_it(config_of: Configs, tmp_path: Path) -> None:
    first = saved_run(config_of("steps=1", "validation.data=[]", f"out={tmp_path / 'first'}"))
    changes = ("validation.data=[]", f"model.init={first.last}")
    folder = saved_run(config_of(*changes, "steps=2"))
    folder.last.write_bytes(b"damaged")
    assert train(config_of(*changes, "steps=3"), CPU, resume=True).progress.step == 3
    load_network(folder.last)


def test_a_folder_in_use_is_left_alone(config_of: Configs) -> None:
    folder = saved_run(config_of("steps=2", "validation.data=[]"))
    before = contents(folder)
    with lock_folder(folder.path):
        for resume in (True, False):
            with pytest.raises(DeepMatchingError, match=r"another out="):
                train(config_of("steps=3", "validation.data=[]"), CPU, resume)
    assert contents(folder) == before
    assert train(config_of("steps=3", "validation.data=[]"), CPU, resume=True).progress.step == 3


def test_a_config_of_the_user_is_neither_overwritten_nor_deleted(config_of: Configs) -> None:
    own = Path(config_of().out) / "config.toml"
    own.parent.mkdir()
    own.write_text("# mine\n")
    for change in ("steps=1", "data.train=missing.json"):
        with pytest.raises(DeepMatchingError, match=re.escape(str(own))):
            train(config_of(change), torch.device("cpu"))
        assert own.read_text() == "# mine\n" and {file.name for file in own.parent.iterdir()} <= {own.name, ".lock"}


def test_nothing_to_resume_and_no_place_to_write(config_of: Configs, tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no run to resume"):
        train(config_of(), CPU, resume=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(DeepMatchingError, match="it is a file"):
        train(config_of(f"out={tmp_path / 'file'}"), CPU)
    with pytest.raises(DeepMatchingError, match="Cannot"):
        train(config_of("out=/proc/run"), CPU)


def test_settings_that_do_not_touch_what_is_learned_may_change(config_of: Configs, tmp_path: Path) -> None:
    config = config_of("steps=2", "validation.data=[]")
    saved_run(config)
    (tmp_path / "run").rename(tmp_path / "moved")
    changed = config_of("steps=3", "log_every=1", f"out={tmp_path / 'moved'}", "data.workers=0", "validation.every=1")
    assert train(changed, CPU, resume=True).progress.step == 3


def test_the_best_score_is_that_of_the_file(config_of: Configs) -> None:
    config = config_of("steps=1")
    outcome = train(config, CPU)
    folder = RunFolder(config.out)
    assert folder.best_score(config) == outcome.best > 0
    assert folder.best_score(config_of("validation.root=elsewhere", "validation.every=9")) == outcome.best
    for change in ("validation.criterion=acc@2", "validation.radius=16", "validation.limit=1"):
        assert folder.best_score(config_of(change)) == -float("inf")  # scores that do not compare
    folder.best.write_bytes(b"damaged")
    assert folder.best_score(config) == -float("inf")


def test_a_state_with_the_settings_and_the_fields_of_older_versions_can_be_resumed(config_of: Configs) -> None:
    config = config_of("steps=2")
    folder = saved_run(config)
    before, progress = metadata_of(folder, "config"), metadata_of(folder, "progress")
    assert before["data"].pop("masks") is True
    older = {**progress, "figures": progress["metrics"], "scale": 1.0, "good": 2}
    del older["metrics"]
    rewrite_state(folder, config=json.dumps(before), progress=json.dumps(older))
    with pytest.raises(DeepMatchingError, match=r"data\.masks true, and now it is false"):
        train(config_of("steps=3", "data.masks=false"), CPU, resume=True)
    loaded = folder.load_state(config, 1, learner_of(config))
    assert asdict(loaded) == progress and loaded.metrics


def test_files_that_were_read_may_be_overwritten(config_of: Configs) -> None:
    """What is loaded is a copy: parts of a file that is still open could not be replaced on Windows."""
    config = config_of("steps=2", "validation.data=[]", "optimizer.lr=0.01")
    folder = saved_run(config)
    network, parts = load_network(folder.last), learner_of(config)
    folder.load_state(config, 1, parts)
    before = {**{n: t.clone() for n, t in network.state_dict().items()}, **tensors_of(parts)}
    with pytest.raises(DeepMatchingError, match=r"use best\.safetensors beside it"):
        load_network(folder.state)  # a state is no model
    for path in (folder.last, folder.state):
        path.write_bytes(bytes(path.stat().st_size))
    after = {**network.state_dict(), **tensors_of(parts)}
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
