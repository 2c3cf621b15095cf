"""The files of a run. It may be killed at any moment and resumed from them.

* ``last.state.safetensors`` holds all that is needed to resume. It is replaced atomically, and written last, so that
  all other files are at least as new; only a new run writes it first, since without it the folder does not hold a run.
* ``best.safetensors`` and ``last.safetensors`` are plain models for ``DeepMatcher.from_pretrained``.
* ``config.toml`` and ``log.csv`` are for people.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter
from torch import Tensor, nn
from torch.optim import Optimizer

from deepmatching.errors import DeepMatchingError
from deepmatching.io.store import Store
from deepmatching.io.structured import parse_json
from deepmatching.io.weights import read_safetensors, write_safetensors
from deepmatching.models import STATE_FORMAT, read_model, save_network
from deepmatching.network.network import Network
from deepmatching.training.config import Config
from deepmatching.training.config_file import config_to_dict
from deepmatching.training.optimization import Learner

#: Settings that may change when a run is resumed: they do not affect what is learned.
CHANGEABLE = (
    *("out", "device", "steps", "minutes", "accumulate", "log_every", "checkpoint_every"),
    *("data.root", "data.split_file", "data.photos", "data.workers", "model.init", "validation"),
)
#: Batches of a step, as a setting: processes may become fewer if ``accumulate`` grows.
_BATCHES = "processes x accumulate"
#: Settings of the validation that its metrics depend on.
_COMPARABLE = ("data", "split", "limit", "radius", "reciprocal", "rank", "criterion")
_BEFORE = {"reciprocal": "bins", "rank": "confidence"}  #: what older runs did, which had no settings for it


@dataclass
class Progress:
    """Everything that the loop carries from step to step besides tensors."""

    __pydantic_config__ = ConfigDict(strict=True)

    step: NonNegativeInt = 0  #: optimizer steps done
    elapsed: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  #: seconds, over all parts of the run
    skipped: NonNegativeInt = 0  #: steps whose gradient was not finite
    skipped_in_a_row: NonNegativeInt = 0
    #: sums of the metrics since the last row of the log; mean over the processes
    sums: dict[str, float] = field(default_factory=dict)
    count: NonNegativeInt = 0  #: steps in these sums
    validated: Annotated[int, Field(ge=-1)] = -1  #: step of the last validation
    metrics: dict[str, float] = field(default_factory=dict)  #: of the last validation


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.state = self.path / "last.state.safetensors"
        self.last, self.best = self.path / "last.safetensors", self.path / "best.safetensors"
        self.config, self.log = self.path / "config.toml", self.path / "log.csv"
        advice = "resume with the same settings, or start another run with out=…"
        self._store = Store(self.path, self.state.name, "models", option="out=…", advice=advice)

    @contextlib.contextmanager
    def reserve(self, resume: bool) -> Iterator[None]:
        """Create the folder, raise early if the run could not be saved there, and keep other processes out."""
        if resume and not self._store.exists:
            raise DeepMatchingError(f"There is no run to resume in '{self.path}': check out=… or leave --resume out.")
        with self._store.reserve():
            there = [file for file in (self.state, self.config, self.best, self.last, self.log) if file.exists()]
            if there and not resume:
                if there[0] == self.config:
                    raise DeepMatchingError(f"'{self.config}' would be overwritten: move it, or use another out=….")
                raise DeepMatchingError(f"'{self.path}' already holds a run: add --resume or use another out=….")
            yield

    def discard(self) -> None:
        """Remove a run that has not made a step, so that the same command can be used again."""
        for file in (self.state, self.best, self.last, self.log, self.config):
            file.unlink(missing_ok=True)

    def best_score(self, config: Config) -> float:
        """Return the score in the file of the best model; −∞ if there is none that was validated in the same way."""
        with contextlib.suppress(ValueError, KeyError, TypeError):  # missing, unreadable, or not written by a run
            card = read_model(self.best)[1]
            before, now = {**_BEFORE, **parse_json(card["config"])["validation"]}, config_to_dict(config.validation)
            score = float(card["score"])
            if math.isfinite(score) and all(before[key] == now[key] for key in _COMPARABLE):
                return score
        return -math.inf

    def save_model(
        self, path: Path, network: Network, config: Config, progress: Progress, score: float | None = None
    ) -> None:
        """Write a model with its step, config and metrics."""
        card = {} if score is None else {"score": repr(score)}
        card |= {"step": str(progress.step), "config": json.dumps(config_to_dict(config))}
        card["metrics"] = json.dumps(progress.metrics if progress.validated == progress.step else {})
        save_network(network, path, **card)  # type: ignore[arg-type]

    def save_state(self, config: Config, processes: int, learner: Learner, progress: Progress) -> None:
        """Replace the state; return when it is on the disk."""
        tensors = _tensors(learner)
        content = {"config": config_to_dict(config), "processes": processes, "progress": asdict(progress)}
        content["optimizer_tensors"] = _of_optimizer(tensors)
        metadata = {"format": STATE_FORMAT, **{name: json.dumps(value) for name, value in content.items()}}
        write_safetensors(self.state, tensors, metadata)

    def load_state(self, config: Config, processes: int, learner: Learner) -> Progress:
        """Load the state into the learner; nothing changes unless all of it fits."""
        saved, metadata = self._read_state()
        before, processes_before = metadata["config"], metadata["processes"]
        with contextlib.suppress(DeepMatchingError):  # settings that did not exist yet get their defaults
            before = config_to_dict(Config(**before))
        now = config_to_dict(config)
        now[_BATCHES], before[_BATCHES] = processes * config.accumulate, processes_before * before.get("accumulate", 1)
        self._store.check_settings(before, now, CHANGEABLE)
        own, found = ({n: t.shape for n, t in tensors.items()} for tensors in (_tensors(learner), saved))
        for name in sorted({*own, *found}):
            if not name.startswith("optimizer.") and own.get(name) != found.get(name):
                advice = "resume with the model and loss settings of that run"
                raise DeepMatchingError(f"{self.state} belongs to another architecture, see {name}: {advice}.")
        if _of_optimizer(saved) != metadata.get("optimizer_tensors", _of_optimizer(saved)):
            raise self._unusable()
        state = self._optimizer_state(learner.optimizer, saved)
        for prefix, module in _modules(learner):
            module.load_state_dict({n.removeprefix(prefix): t for n, t in saved.items() if n.startswith(prefix)})
        learner.optimizer.load_state_dict(state)
        return metadata["progress"]

    def _read_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the decoded metadata of the state."""
        try:
            tensors, metadata = read_safetensors(self.state)
        except DeepMatchingError as error:
            raise self._unusable(f"cannot be read ({error.__cause__ or str(error).rstrip('.')})") from error
        names = {"config", "processes", "progress", *({"optimizer_tensors"} & set(metadata))}  # not in older states
        try:
            decoded = {name: parse_json(metadata[name], allow_nan=True) for name in names}
            decoded["progress"] = _progress(decoded["progress"])
            fits = isinstance(decoded["config"], dict) and isinstance(decoded["processes"], int)
        except (KeyError, ValueError, TypeError, AttributeError):
            fits = False
        if not fits or metadata.get("format") != STATE_FORMAT:
            raise self._unusable()
        return tensors, decoded

    def _unusable(self, problem: str = "is damaged, or not the state of a training run") -> DeepMatchingError:
        advice = f"start a new run with out=… and, to keep the weights, model.init={self.last}"
        return DeepMatchingError(f"{self.state} {problem}: {advice}.")

    def _optimizer_state(self, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what ``optimizer.load_state_dict`` takes, from the names of :func:`_tensors`."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name in _of_optimizer(tensors):
            place = re.fullmatch(r"optimizer\.(\d{1,6})\.(\w+)", name)
            if place is None or int(place[1]) >= len(parameters):
                raise self._unusable()
            value, parameter = tensors[name], parameters[int(place[1])]
            if value.ndim:
                if value.shape != parameter.shape:
                    raise self._unusable()
                # With the strides of the parameter: other strides use other kernels, which round differently.
                value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            state.setdefault(int(place[1]), {})[place[2]] = value
        if len({frozenset(entries) for entries in state.values()}) > 1:  # each parameter has the same entries
            raise self._unusable()
        return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _progress(saved: dict[str, Any]) -> Progress:
    """Check a saved progress. Older states say ``figures`` for metrics and hold fields that are gone."""
    saved = {"metrics": saved.get("figures", {}), **saved}
    if missing := {field.name for field in fields(Progress)} - set(saved):
        raise KeyError(*missing)
    return TypeAdapter(Progress).validate_json(json.dumps(saved))  # strict types, but a table for the dataclass


def _modules(learner: Learner) -> list[tuple[str, nn.Module]]:
    """Return the modules of a run, and how the names of their tensors begin."""
    average = [] if learner.average is None else [("mean.", learner.average.network)]
    return [("model.", learner.model), *average]


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """Return all tensors of a run by name; the states of our optimizers are nothing but tensors."""
    tensors = {prefix + n: tensor for prefix, module in _modules(learner) for n, tensor in module.state_dict().items()}
    states = learner.optimizer.state_dict()["state"]
    return tensors | {f"optimizer.{n}.{key}": value for n, state in states.items() for key, value in state.items()}


def _of_optimizer(tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted(name for name in tensors if name.startswith("optimizer."))
