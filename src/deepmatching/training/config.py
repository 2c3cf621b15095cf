"""Everything that a training run can be told, as frozen dataclasses that check themselves.

The field names are the keys of a config file: ``optimizer.lr`` is ``Config.optimizer.lr``. ``config.py`` reads them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from deepmatching.errors import DeepMatchingError
from deepmatching.losses.objective import Kind, check_weights

#: The source of pairs that are made on the fly; all others are names of data sets or paths of manifests.
SYNTHETIC = "synthetic"

#: Validate on the training pairs themselves.
TRAIN = "train"

#: Data sets of which there are several renderings, and the one that comes with a file that splits it.
WITH_PASSES, WITH_SPLIT_FILE = ("sintel", "sintelmini"), "chairs"

#: PyTorch's generators take 64 bits.
LARGEST_SEED = 2**63 - 1

Learn = Literal["features", "exponents", "both"]
OptimizerName = Literal["adamw", "sgd"]
Schedule = Literal["constant", "cosine", "onecycle"]
Amp = Literal["off", "bf16", "fp16"]


@dataclass(frozen=True)
class ModelConfig:
    """The network at the start, and which of its parameters move.

    Attributes:
        descriptor: ``hog``, ``vgg`` or ``compact``; empty for that of ``init``.
        init: empty for random weights, or a model's name, a ``.safetensors`` model, or ImageNet weights for ``vgg``.
        radius: R in pixels, or ``full``.
        levels: L, or ``auto`` for as many as the crop allows.
        learn: ``features`` (the descriptor), ``exponents`` (ν_l) or ``both``.
        subpixel: κ at the start, for matches refined between cells; 0 for matches on cells. ``auto`` is that of the
            model ``init``; where that has none, 20 if ``loss.subpixel`` has a weight, and else 0. κ is learned if
            ``loss.subpixel`` has a weight.
        settings: further arguments of the descriptor.
    """

    descriptor: str = "compact"
    init: str = ""
    radius: int | Literal["full"] = 80
    levels: int | Literal["auto"] = "auto"
    learn: Learn = "both"
    subpixel: float | Literal["auto"] = "auto"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.descriptor and not self.init:
            raise DeepMatchingError("There is no model to train: set model.descriptor or model.init.")
        at_least("model.radius", self.radius, 1, ("full",))
        at_least("model.levels", self.levels, 0, ("auto",))
        at_least("model.subpixel", self.subpixel, 0, ("auto",))
        one_of("model.learn", self.learn, get_args(Learn))


@dataclass(frozen=True)
class DataConfig:
    """Where training pairs come from.

    Attributes:
        train: ``synthetic``, or data sets: their names or the paths of manifests.
        root: folder of each data set, or one for all; a manifest needs none.
        split: part of the data sets that have parts; empty for ``train``.
        passes: rendering of ``sintel`` and ``sintelmini``, for validation too: ``clean`` or ``final``; empty for
            ``clean``.
        split_file: the file that splits ``chairs``, for validation too; empty for the one in its folder.
        photos: folder of photographs and cut-outs, for ``synthetic``.
        synthesis: ``preset`` of the synthetic generator, and settings that differ from it.
        crop: (rows, columns) cut from each pair at random; (0, 0) for whole images.
        batch: pairs at a time, on each device.
        flips: mirror pairs at random: one in two left to right, one in ten upside down.
        masks: read the masks that data sets have, for validation too; False where they are missing: then occluded
            points count as any other.
        workers: processes that read data sets; 0 reads in the training process.
        overfit: train on this many pairs, always the same, and validate on them; 0 for off.
    """

    train: tuple[str, ...] = (SYNTHETIC,)
    root: tuple[str, ...] = ()
    split: str = ""
    passes: Literal["", "clean", "final"] = ""
    split_file: str = ""
    photos: str = ""
    synthesis: dict[str, Any] = field(default_factory=dict)
    crop: tuple[int, ...] = (256, 320)
    batch: int = 2
    flips: bool = True
    masks: bool = True
    workers: int = 2
    overfit: int = 0

    def __post_init__(self) -> None:
        if not self.train or not all(self.train):
            raise DeepMatchingError("data.train is empty: use 'synthetic', a data set's name or a manifest's path.")
        if SYNTHETIC in self.train and len(self.train) > 1:
            raise DeepMatchingError("data.train cannot mix 'synthetic' with data sets: name the one or the others.")
        if len(self.crop) != 2 or min(self.crop) < 0 or (0 in self.crop and any(self.crop)):
            raise DeepMatchingError(f"data.crop must be [rows, columns] or [0, 0] for none, not {list(self.crop)}.")
        if self.is_synthetic and not any(self.crop):
            raise DeepMatchingError("Synthetic pairs have the size data.crop: set it to [rows, columns].")
        if self.is_synthetic and not self.photos:
            raise DeepMatchingError("Synthetic pairs are made of photographs: set data.photos to a folder of them.")
        check_roots("data", self.root, self.train)
        at_least("data.batch", self.batch, 1)
        at_least("data.workers", self.workers, 0)
        at_least("data.overfit", self.overfit, 0)

    @property
    def is_synthetic(self) -> bool:
        return self.train == (SYNTHETIC,)


@dataclass(frozen=True)
class ValidationConfig:
    """How the network is judged while it trains.

    Attributes:
        data: data sets as in ``data.train``; ``train`` for the training pairs themselves; empty for no validation.
        root, split: as in ``data``; an empty ``root`` is that of ``data`` (of several, that of the data set of the same
            name), an empty ``split`` is ``val``.
        every: steps between validations.
        limit: use only so many pairs, spread over the data; 0 for all.
        radius: R while validating, or ``full``.
        criterion: what the best checkpoint has the most of: figures joined by ``+``, such as ``acc@2+acc@5``.
    """

    data: tuple[str, ...] = ()
    root: tuple[str, ...] = ()
    split: str = ""
    every: int = 500
    limit: int = 0
    radius: int | Literal["full"] = 80
    criterion: str = "acc@2+acc@5+acc@10"

    def __post_init__(self) -> None:
        at_least("validation.every", self.every, 1)
        at_least("validation.limit", self.limit, 0)
        at_least("validation.radius", self.radius, 1, ("full",))
        for name in self.criterion.split("+"):
            one_of("validation.criterion", name, ("acc@2", "acc@5", "acc@10", "coverage"))
        if not all(self.data):
            raise DeepMatchingError("validation.data has an empty name: use data sets, manifests or 'train'.")
        for word in (TRAIN, SYNTHETIC):
            if word in self.data and len(self.data) > 1:
                raise DeepMatchingError(
                    f"validation.data cannot mix '{word}' with data sets: name the one or the others."
                )
        check_roots("validation", self.root, self.data)


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters follow the gradient.

    Attributes:
        name: ``adamw`` or ``sgd`` (with momentum, the paper's).
        lr: learning rate at its highest.
        exponents_lr: learning rate of ν_l and κ, in units of ``lr``; they have no weight decay.
        loss_lr: learning rate of the loss's own parameters (β), likewise.
        momentum: of SGD; β₁ of AdamW.
        weight_decay: λ of the descriptor's parameters: λ‖w‖²/2 is added to the loss (SGD), or they shrink by lr·λ a
            step (AdamW).
        schedule: ``constant``, ``cosine`` (down to ``final``) or ``onecycle`` (up from lr/25 in the first 30 % of the
            run, then down to ``final``).
        warmup: steps in which the learning rate rises from 0.
        final: learning rate at the end of the run, in units of ``lr``.
        clip: largest norm of the gradient; 0 for no limit.
    """

    name: OptimizerName = "adamw"
    lr: float = 1e-3
    exponents_lr: float = 1.0
    loss_lr: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"
    warmup: int = 200
    final: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, get_args(OptimizerName))
        one_of("optimizer.schedule", self.schedule, get_args(Schedule))
        for key in ("lr", "exponents_lr", "loss_lr", "weight_decay", "warmup", "final", "clip"):
            at_least(f"optimizer.{key}", getattr(self, key), 0)
        share("optimizer.momentum", self.momentum)


@dataclass(frozen=True)
class LossConfig:
    """What is minimised: the arguments of :class:`deepmatching.losses.Objective`.

    Attributes:
        kind: ``cross-entropy``, ``hinge`` (the paper's) or ``indicator``.
        weights: weight of each score volume by name: S0, S1, … and Q0, Q1, ….
        sigma: σ of g_σ in pixels.
        margin: of the hinge.
        scale: β of the cross-entropy at the start; learned along.
        subpixel: weight of the error of refined matches; not with ``model.subpixel`` 0.
        occluded: whether points that are hidden in the second image count.
    """

    kind: Kind = "cross-entropy"
    weights: dict[str, float] = field(default_factory=lambda: {"Q0": 1.0})
    sigma: float = 1.5
    margin: float = 1.0
    scale: float = 10.0
    subpixel: float = 0.0
    occluded: bool = False

    def __post_init__(self) -> None:
        one_of("loss.kind", self.kind, get_args(Kind))
        for key in ("sigma", "margin", "scale"):  # what float32 can compute with
            between(f"loss.{key}", getattr(self, key), 0.001, 1_000_000)
        between("loss.subpixel", self.subpixel, 0, 1_000_000)
        for name, weight in self.weights.items():
            between(f"loss.weights.{name}", weight, 0, 1_000_000)
        check_weights(self.weights)


@dataclass(frozen=True)
class Config:
    """A whole run.

    Attributes:
        out: folder of the run; created if missing.
        seed: of weights, order and augmentation.
        device: ``auto`` (cuda, else mps, else cpu), ``cpu``, ``cuda``, ``mps``.
        steps: optimiser steps; 0 for no limit.
        minutes: time limit, over all resumed parts of the run; 0 for none. The schedule follows whichever is nearer.
        accumulate: batches whose gradients are averaged into one step.
        amp: precision inside the descriptor: ``off`` (float32), ``bf16`` or ``fp16``. Scores stay float32.
        ema: decay of the running mean of the weights, which is then what is validated and saved as best; 0 for off.
        log_every: steps between rows of the log.
        checkpoint_every: steps between checkpoints; there is one after each validation, too.
    """

    out: str = "runs/train"
    seed: int = 0
    device: str = "auto"
    steps: int = 2000
    minutes: float = 0.0
    accumulate: int = 1
    amp: Amp = "off"
    ema: float = 0.0
    log_every: int = 20
    checkpoint_every: int = 500
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        if not self.out:
            raise DeepMatchingError("The run needs a folder: set out to its name.")
        between("seed", self.seed, 0, LARGEST_SEED)
        at_least("steps", self.steps, 0)
        at_least("minutes", self.minutes, 0)
        if not self.steps and not self.minutes:
            raise DeepMatchingError("The run would never end: set steps or minutes.")
        for key in ("accumulate", "log_every", "checkpoint_every"):
            at_least(key, getattr(self, key), 1)
        one_of("amp", self.amp, get_args(Amp))
        share("ema", self.ema)
        if self.loss.subpixel and self.model.subpixel == 0:
            raise DeepMatchingError(
                "loss.subpixel needs a network that refines its matches: set it to 0 too, or model.subpixel=auto."
            )
        names = {name.lower() for name in (*self.data.train, *self.validation.data)}
        if self.data.passes and not names.intersection(WITH_PASSES):
            raise DeepMatchingError("data.passes is for sintel and sintelmini, and there is neither: leave it out.")
        if self.data.split_file and WITH_SPLIT_FILE not in names:
            raise DeepMatchingError(f"data.split_file is for {WITH_SPLIT_FILE}, which is not used: leave it out.")
        if self.validation.data == (TRAIN,) and self.data.is_synthetic and not self.data.overfit:
            raise DeepMatchingError(
                "Synthetic pairs never come again: set validation.data to 'synthetic' or real ones."
            )
        if self.validation.data == (SYNTHETIC,) and not self.data.is_synthetic:
            raise DeepMatchingError(
                "Validation on synthetic pairs is for training on them: set validation.data to others."
            )


def check_roots(section: str, roots: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Raise unless there is no root, one for all, or one for each data set."""
    if len(roots) not in {0, 1, len(names)}:
        raise DeepMatchingError(
            f"{section}.root lists {len(roots)} folders for {len(names)} data sets: give one for all, or one for each."
        )


def at_least(key: str, value: Any, least: float, also: Collection[str] = ()) -> None:
    """Raise unless value ≥ least (or one of the words in ``also``); NaN and infinities are refused too."""
    if value in also:
        return
    if not least <= value < float("inf"):
        words = "".join(f" or {word!r}" for word in also)
        raise DeepMatchingError(f"{key} must be a number of at least {least}{words}, not {value!r}.")


def between(key: str, value: float, least: float, most: float) -> None:
    """Raise unless least ≤ value ≤ most."""
    if not least <= value <= most:
        raise DeepMatchingError(f"{key} must be a number from {least} to {most}, not {value!r}.")


def share(key: str, value: float) -> None:
    """Raise unless 0 ≤ value < 1."""
    if not 0 <= value < 1:
        raise DeepMatchingError(f"{key} must be a number from 0 to below 1, not {value!r}.")


def one_of(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise unless the value is one of the allowed words."""
    if value not in allowed:
        raise DeepMatchingError(f"{key} must be one of {', '.join(allowed)}, not {value!r}.")
