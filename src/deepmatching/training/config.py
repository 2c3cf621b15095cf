"""All settings of a training run, as frozen dataclasses that check themselves.

The field names are the keys of a config file: ``optimizer.lr`` is ``Config.optimizer.lr``. ``config_file`` reads and
writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from deepmatching.data.datasets.opening import WITH_PASSES, WITH_SPLIT_FILE, WITH_SPLITS
from deepmatching.errors import DeepMatchingError, check_choice, check_number
from deepmatching.network.losses.objective import Kind, check_weights
from deepmatching.settings import MARGIN, RADIUS, SCALE, SIGMA, TEMPERATURE, THRESHOLDS, radius_in_pixels

#: The data source that makes pairs on the fly. All others are names of data sets or paths of manifests.
SYNTHETIC = "synthetic"

#: Validate on the training pairs themselves.
TRAIN = "train"

#: PyTorch's generators take 64 bits.
LARGEST_SEED = 2**63 - 1

#: Range of the loss's numbers: what float32 can compute with.
_SMALLEST, _LARGEST = 0.001, 1_000_000

#: Rows or columns of a crop, beyond any image.
_LARGEST_SIDE = 1_000_000

#: Metrics that can choose the best checkpoint.
_CRITERIA = (*(f"acc@{threshold}" for threshold in THRESHOLDS), "coverage", "auc", "flow@3")

Learn = Literal["features", "exponents", "both", "confidence", "flow"]
ModelPooling = Literal["auto", "hard", "soft"]
OptimizerName = Literal["adamw", "sgd"]
Schedule = Literal["constant", "cosine"]
Amp = Literal["off", "bf16"]


@dataclass(frozen=True)
class ModelConfig:
    """The network at the start of the run, and which of its parameters are learned."""

    descriptor: str = "compact"  #: ``hog``, ``vgg`` or ``compact``; empty for the descriptor of ``init``
    #: empty for random weights, or a model's name, a ``.safetensors`` model, or ImageNet weights for ``vgg``
    init: str = ""
    radius: int | Literal["full"] = RADIUS  #: R in pixels, or ``full``
    levels: int | Literal["auto"] = "auto"  #: L; ``auto`` for as many as the crop allows
    #: ``features`` (the descriptor), ``exponents`` (ν_l and β_l), ``both``, ``confidence`` (nothing but the network
    #: that judges the matches; see also ``loss.confidence``) or ``flow`` (only the dense network; see ``loss.flow``)
    learn: Learn = "both"
    learn_nu0: bool = True  #: whether ν_0 is among the exponents that are learned; the paper learns ν_1 … ν_L
    #: κ at the start, for matches refined between cells; 0 for matches on cells. ``auto`` takes the κ of the model
    #: ``init``; without one it is 20 if ``loss.subpixel`` has a weight, and 0 otherwise. κ is learned if
    #: ``loss.subpixel`` has a weight.
    subpixel: float | Literal["auto"] = "auto"
    #: ``hard`` (the paper's max pooling) or ``soft``; ``auto`` for that of the model ``init``, hard without one
    pooling: ModelPooling = "auto"
    #: β_l of soft pooling at the start, for a network that has none; it is learned with the exponents
    temperature: float = TEMPERATURE
    settings: dict[str, Any] = field(default_factory=dict)  #: further arguments of the descriptor

    def __post_init__(self) -> None:
        if not self.descriptor and not self.init:
            raise DeepMatchingError("There is no model to train: set model.descriptor or model.init.")
        radius_in_pixels(self.radius, "model.radius")
        check_number("model.levels", self.levels, minimum=0, whole=True, also=("auto",))
        check_number("model.subpixel", self.subpixel, minimum=0, also=("auto",))
        check_choice("model.learn", self.learn, get_args(Learn))
        check_choice("model.pooling", self.pooling, get_args(ModelPooling))
        check_number("model.temperature", self.temperature, minimum=_SMALLEST, maximum=_LARGEST)


@dataclass(frozen=True)
class DataConfig:
    """Where training pairs come from."""

    train: tuple[str, ...] = (SYNTHETIC,)  #: ``synthetic``, or data sets: their names or the paths of manifests
    root: tuple[str, ...] = ()  #: one folder for all data sets, or one for each; a manifest needs none
    split: str = ""  #: split of the data sets that have several; empty for ``train``
    #: rendering of ``sintel`` and ``sintelmini``, for validation too: ``clean`` or ``final``; empty for ``clean``
    passes: Literal["", "clean", "final"] = ""
    split_file: str = ""  #: split file of ``chairs``, for validation too; empty for the one in its folder
    photos: str = ""  #: folder of photographs and cut-outs, for ``synthetic``
    synthesis: dict[str, Any] = field(default_factory=dict)  #: ``preset`` of the generator, and changes to it
    crop: tuple[int, ...] = (256, 320)  #: (rows, columns) of the random crops; (0, 0) for whole images
    batch: int = 2  #: pairs in a batch, on each device
    flips: bool = True  #: mirror pairs at random: one in two left to right, one in ten upside down
    #: read the occlusion masks of the data sets, for validation too; without masks, occluded points count like others
    masks: bool = True
    workers: int = 2  #: processes that read data sets; 0 to read in the training process
    overfit: int = 0  #: train and validate on this many pairs, always the same; 0 for off

    def __post_init__(self) -> None:
        if not self.train or not all(self.train):
            raise DeepMatchingError(
                "There are no pairs to train on: set data.train to a manifest (data.train=pairs.json), to a data set's "
                "name or to 'synthetic'."
            )
        if SYNTHETIC in self.train and len(self.train) > 1:
            raise DeepMatchingError("data.train cannot mix 'synthetic' with data sets: use one or the other.")
        if len(self.crop) != 2 or min(self.crop) < 0 or (0 in self.crop and any(self.crop)):
            raise DeepMatchingError(f"data.crop must be [rows, columns] or [0, 0] for none, not {list(self.crop)}.")
        for side in self.crop:
            check_number("data.crop", side, maximum=_LARGEST_SIDE, whole=True)
        if self.is_synthetic and not any(self.crop):
            raise DeepMatchingError("Synthetic pairs have the size data.crop: set it to [rows, columns].")
        if self.is_synthetic and not self.photos:
            raise DeepMatchingError("Synthetic pairs are made from photographs: set data.photos to a folder of them.")
        _check_roots("data", self.root, self.train)
        check_number("data.batch", self.batch, minimum=1, whole=True)
        for key in ("workers", "overfit"):
            check_number(f"data.{key}", getattr(self, key), minimum=0, whole=True)

    @property
    def is_synthetic(self) -> bool:
        return self.train == (SYNTHETIC,)


@dataclass(frozen=True)
class ValidationConfig:
    """How the network is validated during training."""

    #: data sets as in ``data.train``; ``train`` for the training pairs themselves; empty for no validation
    data: tuple[str, ...] = ()
    #: as ``data.root``; empty for the training data's root (with several, that of the data set of the same name)
    root: tuple[str, ...] = ()
    split: str = ""  #: as ``data.split``; empty for ``val``
    every: int = 500  #: steps between validations
    limit: int = 0  #: largest number of pairs, evenly spread over the data; 0 for all
    radius: int | Literal["full"] = RADIUS  #: R during validation, or ``full``
    #: the best checkpoint has the largest sum of these metrics, joined by ``+``
    criterion: str = "+".join(f"acc@{threshold}" for threshold in THRESHOLDS)

    def __post_init__(self) -> None:
        check_number("validation.every", self.every, minimum=1, whole=True)
        check_number("validation.limit", self.limit, minimum=0, whole=True)
        radius_in_pixels(self.radius, "validation.radius")
        for name in self.criterion.split("+"):
            check_choice("validation.criterion", name, _CRITERIA)
        if not all(self.data):
            raise DeepMatchingError("validation.data has an empty name: use data sets, manifests or 'train'.")
        for word in (TRAIN, SYNTHETIC):
            if word in self.data and len(self.data) > 1:
                raise DeepMatchingError(f"validation.data cannot mix '{word}' with data sets: use one or the other.")
        _check_roots("validation", self.root, self.data)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate schedule."""

    name: OptimizerName = "adamw"  #: ``adamw`` or ``sgd`` (with momentum, the paper's)
    lr: float = 1e-3  #: peak learning rate
    exponents_lr: float = 1.0  #: learning rate of ν_l, κ and log β_l, as a multiple of ``lr``, without weight decay
    loss_lr: float = 1.0  #: the same for the loss's own parameters (β)
    momentum: float = 0.9  #: of SGD; β₁ of AdamW
    #: λ of the descriptor's parameters: λ‖w‖²/2 is added to the loss (SGD), or they shrink by lr·λ a step (AdamW)
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"  #: ``constant`` or ``cosine`` (down to ``final``)
    warmup: int = 200  #: steps over which the learning rate rises from 0
    final: float = 0.0  #: learning rate at the end of the run, as a fraction of ``lr``
    clip: float = 1.0  #: largest norm of the gradient; 0 for no limit

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, get_args(OptimizerName))
        check_choice("optimizer.schedule", self.schedule, get_args(Schedule))
        for key in ("lr", "exponents_lr", "loss_lr", "weight_decay", "warmup", "final", "clip"):
            check_number(f"optimizer.{key}", getattr(self, key), minimum=0)
        check_number("optimizer.momentum", self.momentum, minimum=0, below=1)


@dataclass(frozen=True)
class LossConfig:
    """The arguments of :class:`deepmatching.network.losses.Objective`."""

    kind: Kind = "cross-entropy"  #: ``cross-entropy``, ``hinge`` (the paper's) or ``indicator``
    #: weight of each score volume by name: S0, S1, … and Q0, Q1, …
    weights: dict[str, float] = field(default_factory=lambda: {"Q0": 1.0})
    sigma: float = SIGMA  #: σ of g_σ in pixels
    margin: float = MARGIN  #: margin of the hinge
    scale: float = SCALE  #: initial β of the cross-entropy; β is learned
    subpixel: float = 0.0  #: weight of the error of refined matches; excludes ``model.subpixel`` 0
    occluded: bool = False  #: whether points that are occluded in the second image count
    #: weight of the confidence network's loss, to train it together with the features; 0 for none. With
    #: ``model.learn`` ``confidence`` it is the only loss, and this has no effect.
    confidence: float = 0.0
    #: weight of the error of the flow that the matches interpolate to, in pixels, which trains the features; 0 for none
    flow: float = 0.0

    def __post_init__(self) -> None:
        check_choice("loss.kind", self.kind, get_args(Kind))
        for key in ("sigma", "margin", "scale"):
            check_number(f"loss.{key}", getattr(self, key), minimum=_SMALLEST, maximum=_LARGEST)
        check_number("loss.subpixel", self.subpixel, minimum=0, maximum=_LARGEST)
        for key in ("confidence", "flow"):
            check_number(f"loss.{key}", getattr(self, key), minimum=0, maximum=_LARGEST)
        for name, weight in self.weights.items():
            check_number(f"loss.weights.{name}", weight, minimum=0, maximum=_LARGEST)
        check_weights(self.weights)


@dataclass(frozen=True)
class Config:
    """A whole run."""

    out: str = "runs/train"  #: folder of the run; created if missing
    seed: int = 0  #: of weights, order and augmentation
    device: str = "auto"  #: ``auto`` (cuda, else mps, else cpu), ``cpu``, ``cuda`` or ``mps``
    steps: int = 2000  #: optimizer steps; 0 for no limit
    #: time limit, over all resumed parts of the run; 0 for none. The schedule follows whichever limit is nearer.
    minutes: float = 0.0
    accumulate: int = 1  #: batches whose gradients are averaged into one step
    amp: Amp = "off"  #: precision inside the descriptor: ``off`` (float32) or ``bf16``; scores stay float32
    #: decay of the moving average of the weights, which is then what is validated and saved as best; 0 for off
    ema: float = 0.0
    log_every: int = 20  #: steps between rows of the log
    checkpoint_every: int = 500  #: steps between checkpoints; each validation is followed by one, too
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        if not self.out:
            raise DeepMatchingError("The run needs a folder: set out to its name.")
        check_number("seed", self.seed, minimum=0, maximum=LARGEST_SEED, whole=True)
        check_number("steps", self.steps, minimum=0, whole=True)
        check_number("minutes", self.minutes, minimum=0)
        if not self.steps and not self.minutes:
            raise DeepMatchingError("The run would never end: set steps or minutes.")
        for key in ("accumulate", "log_every", "checkpoint_every"):
            check_number(key, getattr(self, key), minimum=1, whole=True)
        check_choice("amp", self.amp, get_args(Amp))
        check_number("ema", self.ema, minimum=0, below=1)
        if self.loss.subpixel and self.model.subpixel == 0:
            raise DeepMatchingError(
                "loss.subpixel needs a network that refines its matches: set it to 0 too, or model.subpixel=auto."
            )
        if self.model.learn in ("confidence", "flow") and not self.model.init:
            raise DeepMatchingError(
                f"model.learn={self.model.learn} needs a trained model: set model.init to compact, vgg or a file."
            )
        names = {name.lower() for name in (*self.data.train, *self.validation.data)}
        if self.data.passes and not names.intersection(WITH_PASSES):
            raise DeepMatchingError("data.passes is for sintel and sintelmini, and neither is used: leave it out.")
        if self.data.split_file and WITH_SPLIT_FILE not in names:
            raise DeepMatchingError(f"data.split_file is for {WITH_SPLIT_FILE}, which is not used: leave it out.")
        for section in ("data", "validation"):
            used = self.data.train if section == "data" else self.validation.data
            if getattr(self, section).split and not {name.lower() for name in used}.intersection(WITH_SPLITS):
                raise DeepMatchingError(
                    f"{section}.split is for {' and '.join(WITH_SPLITS)}, and neither is used: leave it out."
                )
        for key in ("photos", "synthesis"):
            if getattr(self.data, key) and not self.data.is_synthetic:
                raise DeepMatchingError(f"data.{key} is for data.train='{SYNTHETIC}', which is not used: leave it out.")
        if self.validation.data == (TRAIN,) and self.data.is_synthetic and not self.data.overfit:
            raise DeepMatchingError(
                "No synthetic pair is seen twice: set validation.data to 'synthetic' or to real pairs."
            )
        if self.validation.data == (SYNTHETIC,) and not self.data.is_synthetic:
            raise DeepMatchingError(
                "Validation on synthetic pairs needs training on synthetic pairs: set validation.data to others."
            )


def _check_roots(section: str, roots: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Raise unless there is no root, one for all, or one for each data set."""
    if len(roots) not in {0, 1, len(names)}:
        raise DeepMatchingError(
            f"{section}.root lists {len(roots)} folders for {len(names)} data sets: give one for all, or one for each."
        )
