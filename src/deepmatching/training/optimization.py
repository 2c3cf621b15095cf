"""The optimiser, its schedule, the running mean of the weights and the scale of the loss."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from deepmatching.training.config import OptimizerConfig
from deepmatching.training.model import TrainedModel


def build_optimizer(model: TrainedModel, config: OptimizerConfig) -> Optimizer:
    """An optimiser of all parameters that require a gradient, in groups with a ``factor`` on the learning rate.

    Weight decay acts on the descriptor alone: towards 0 the exponents would make all scores equal.
    """
    network = model.network
    own = [network.exponents] if network.sharpness is None else [network.exponents, network.sharpness]
    groups = [
        {
            "params": [p for p in parameters if p.requires_grad],
            "factor": factor,
            "lr": factor * config.lr,
            "weight_decay": decay,
        }
        for parameters, factor, decay in (
            (list(network.descriptor.parameters()), 1.0, config.weight_decay),
            (own, config.exponents_lr, 0.0),
            (list(model.objective.parameters()), config.loss_lr, 0.0),
        )
    ]
    groups = [group for group in groups if group["params"]]
    fused = network.exponents.is_cuda  # one launch instead of a dozen
    if config.name == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    return AdamW(groups, lr=config.lr, betas=(config.momentum, 0.999), fused=fused)


def learning_rate(config: OptimizerConfig, step: int, progress: float) -> float:
    """The factor on ``lr`` of step ``step`` (from 0), when this share of the run is done.

    cosine:    f + (1 − f) (1 + cos πt) / 2, t the share of the run and f = ``final``;
    onecycle:  1/25 + 24/25 (1 − cos πu) / 2 with u = t/0.3 while u < 1, then the cosine of (t − 0.3)/0.7.
    """
    t = min(max(progress, 0.0), 1.0)
    rise = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant":
        return rise
    if config.schedule == "onecycle":
        if t < 0.3:
            return rise * (1 + 24 * (1 - math.cos(math.pi * t / 0.3)) / 2) / 25
        t = (t - 0.3) / 0.7
    return rise * (config.final + (1 - config.final) * (1 + math.cos(math.pi * t)) / 2)


class RunningMean:
    """Exponential moving average of a network's tensors: m ← d m + (1 − d) w, d growing from 0.1 to ``decay``."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay = network, decay
        own = network.state_dict()
        self.tensors = {name: tensor.detach().clone() for name, tensor in own.items()}
        # The network's tensors change in place: these lists stay right. Counters are not averaged.
        averaged = [name for name, tensor in own.items() if tensor.is_floating_point()]
        self._own, self._means = ([tensors[name] for name in averaged] for tensors in (own, self.tensors))

    def update(self, step: int) -> None:
        """Take in the weights after step ``step`` (from 0)."""
        get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))(self._means, self._own, None)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, mean in self.tensors.items():
            mean.copy_(tensors[name])

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """While this lasts, the network has the mean weights."""
        own = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        self.network.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.network.load_state_dict(own)


class LossScale:
    """A factor on the loss that keeps small gradients from vanishing in half precision (fp16).

    Halved when a gradient overflows, doubled after ``patience`` steps without.
    """

    patience = 2000

    def __init__(self, scale: float = 1.0, good: int = 0, grows: bool = False) -> None:
        self.scale, self.good, self.grows = scale, good, grows

    def update(self, finite: bool) -> None:
        if not self.grows:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale = max(1.0, self.scale / 2)
        elif self.good >= self.patience:
            self.scale, self.good = min(2.0**24, 2 * self.scale), 0

    def undo(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give gradients their true size."""
        if self.scale != 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self.scale)
