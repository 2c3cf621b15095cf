"""The optimizer, its learning rate schedule and the moving average of the weights."""

import copy
import math
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from deepmatching.training.config import Config, OptimizerConfig
from deepmatching.training.model import TrainedModel


class Learner:
    """What training changes: a model, its optimizer and, if the config has one, the moving average of its network."""

    def __init__(self, model: TrainedModel, config: Config) -> None:
        self.model = model
        self.optimizer = build_optimizer(model, config.optimizer, keep_nu0=not config.model.learn_nu0)
        self.average = MovingAverage(model.network) if config.ema else None


def build_optimizer(model: TrainedModel, config: OptimizerConfig, keep_nu0: bool = False) -> Optimizer:
    """Build an optimizer of all parameters that require a gradient, in groups with a ``factor`` on the learning rate.

    Weight decay acts on the descriptor and the confidence; on the exponents only if ``exponents_decay`` asks for it,
    since exponents near 0 would make all scores equal. ``keep_nu0`` exempts ν_0.
    """
    network = model.network
    own = [p for p in (network.sharpness, network.log_temperatures) if p is not None]
    if isinstance(network.own_pooling, nn.Module):
        own += network.own_pooling.parameters()
    parts = (part for part in (network.descriptor, network.confidence) if part is not None)
    candidates = (
        *((part.parameters(), 1.0, config.weight_decay) for part in parts),
        ([network.exponents], config.exponents_lr, config.exponents_decay),
        (own, config.exponents_lr, 0.0),
        (model.objective.parameters(), config.loss_lr, 0.0),
    )
    groups: list[dict[str, Any]] = []
    for parameters, factor, decay in candidates:
        if learned := [p for p in parameters if p.requires_grad]:
            groups.append({"params": learned, "factor": factor, "lr": factor * config.lr, "weight_decay": decay})
    fused = network.exponents.is_cuda  # one launch instead of a dozen
    optimizer: Optimizer
    if config.name == "sgd":
        optimizer = SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    else:
        optimizer = AdamW(groups, lr=config.lr, betas=(config.momentum, 0.999), fused=fused)
    if keep_nu0 and config.exponents_decay:
        first = network.exponents.detach()[0].clone()

        def restore(*_: object) -> None:
            network.exponents.data[0] = first

        optimizer.register_step_post_hook(restore)
    return optimizer


def learning_rate_factor(config: OptimizerConfig, step: int, progress: float) -> float:
    """Return the factor on ``lr`` in step ``step`` (from 0), when this fraction of the run is done."""
    warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return warmup * (1.0 if config.schedule == "constant" else cosine(progress, config.final))


def cosine(progress: float, final: float = 0.0) -> float:
    """Return f + (1 − f) (1 + cos πt) / 2, half a cosine down to f = ``final``; t = ``progress`` limited to [0, 1].

    PyTorch's schedules count steps; this one also follows a run that is limited in time.
    """
    return final + (1 - final) * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2


class MovingAverage:
    """Exponential moving average of a network's floating-point tensors: ``network``, a copy with averaged weights."""

    def __init__(self, network: nn.Module) -> None:
        self.network: Any = copy.deepcopy(network)
        # Both networks change in place, so these lists stay valid. Integer counters are not averaged.
        self._averages, self._weights = (
            [tensor for tensor in each.state_dict().values() if tensor.is_floating_point()]
            for each in (self.network, network)
        )

    def update(self, decay: float) -> None:
        """Set m ← d m + (1 − d) w for every tensor, d = ``decay``."""
        get_ema_multi_avg_fn(decay)(self._averages, self._weights, None)


def ema_decay(largest: float, step: int) -> float:
    """Return the decay after ``step`` (from 0): it grows from 0.1 to ``largest``, to forget early weights."""
    return min(largest, (1 + step) / (10 + step))
