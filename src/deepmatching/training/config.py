"""All settings of a training run, and what is wrong with bad ones, in words.

The field names are the keys of a config file: ``optimizer.lr`` is ``Config.optimizer.lr``.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from deepmatching.data.datasets.opening import WITH_PASSES, WITH_SPLIT_FILE, WITH_SPLITS
from deepmatching.errors import DeepMatchingError, check_choice, short_repr
from deepmatching.extensions import is_import_path
from deepmatching.network.losses.objective import check_kind, check_weights
from deepmatching.settings import (
    CROSS_ENTROPY_BETA,
    HINGE_MARGIN,
    LOSS_SIGMA,
    RADIUS,
    RECIPROCAL,
    TEMPERATURE,
    THRESHOLDS,
    Pooling,
    Rank,
    Reciprocal,
    radius_in_pixels,
)

SYNTHETIC = "synthetic"  #: the data source that makes pairs on the fly
TRAIN = "train"  #: validate on the training pairs themselves
LARGEST_SEED = 2**63 - 1  #: PyTorch's generators take 64 bits
_LARGEST_SIDE = 1_000_000  #: rows or columns of a crop, beyond any image
#: Metrics that can choose the best checkpoint.
_CRITERIA = (*(f"acc@{threshold}" for threshold in THRESHOLDS), "coverage", "auc")

Learn = Literal["features", "exponents", "both", "confidence"]
Amp = Literal["off", "bf16"]
FlowPositions = Literal["peak", "soft"]


def _as_tuple(value: Any) -> Any:
    """Return a list as a tuple, a single value as a tuple of one, and an empty text as an empty tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,) if value != "" else ()


def _check_arguments(key: str, arguments: Mapping[str, Any]) -> None:
    """Raise for numbers that TOML cannot hold."""
    for name, value in arguments.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not abs(item) < 2**63:
                raise DeepMatchingError(f"{key}.{name} must be a finite number of 64 bits, not {short_repr(item)}.")


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Sides = Annotated[tuple[Annotated[int, Field(ge=0, le=_LARGEST_SIDE)], ...], BeforeValidator(_as_tuple)]

LossNumber = Annotated[float, Field(ge=0.001, le=1_000_000)]  #: what float32 can compute with
LossWeight = Annotated[float, Field(ge=0, le=1_000_000)]
Fraction = Annotated[float, Field(ge=0, lt=1)]  #: below 1


class Section(BaseModel):
    """Settings that are checked when they are made."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    #: Name of the section in a file, with a dot; empty for the settings outside of any section.
    prefix: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error, self.prefix, values) from error


class ModelConfig(Section):
    """The network at the start of the run, and which of its parameters are learned."""

    prefix = "model."

    descriptor: str = "compact"  #: ``hog``, ``vgg``, ``compact``, ``package.module:Class``; empty for that of ``init``
    init: str = ""  #: a model's name, a ``.safetensors`` model, ImageNet weights for ``vgg``; empty for random weights
    radius: int | Literal["full"] = RADIUS  #: R in pixels, or ``full``
    levels: NonNegativeInt | Literal["auto"] = "auto"  #: L; ``auto`` for as many as the crop allows
    learn: Learn = "both"  #: ``features`` (the descriptor), ``exponents`` (ν_l, β_l) or ``both``; or ``confidence``
    learn_nu0: bool = True  #: whether ν_0 is among the exponents that are learned; the paper learns ν_1 … ν_L
    nu0: LossNumber | Literal["auto"] = "auto"  #: at the start: 1 for eq. (2); ``auto`` for that of ``init``, else 1.4
    #: κ at the start, learned if ``loss.subpixel`` has a weight; 0 for matches on cells. ``auto`` for that of ``init``;
    #: without one it is 20 if ``loss.subpixel`` has a weight, and 0 otherwise.
    subpixel: NonNegativeFloat | Literal["auto"] = "auto"
    pooling: str = "auto"  #: ``hard``, ``soft`` or ``package.module:Class``; ``auto`` for that of ``init``, else hard
    temperature: LossNumber = TEMPERATURE  #: β_l of soft pooling at the start, for a network that has none
    settings: dict[str, Any] = {}  #: further arguments of the descriptor

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if not self.descriptor and not self.init:
            raise DeepMatchingError("There is no model to train: set model.descriptor or model.init.")
        radius_in_pixels(self.radius, "model.radius")
        if not is_import_path(self.pooling):
            check_choice("model.pooling", self.pooling, ("auto", *get_args(Pooling)))
        _check_arguments("model.settings", self.settings)
        return self


class DataConfig(Section):
    """Where training pairs come from."""

    prefix = "data."

    train: Names = (SYNTHETIC,)  #: ``synthetic``, or data sets: names, paths of manifests, ``package.module:Class``
    root: Names = ()  #: one folder for all data sets, or one for each; a manifest needs none
    split: str = ""  #: split of the data sets that have several; empty for ``train``
    passes: Literal["", "clean", "final"] = ""  #: of ``sintel`` and ``sintelmini``, for validation too; empty for clean
    split_file: str = ""  #: split file of ``chairs``, for validation too; empty for the one in its folder
    photos: str = ""  #: folder of photographs and cut-outs, for ``synthetic``
    synthesis: dict[str, Any] = {}  #: ``preset`` of the generator, and changes to it
    crop: Sides = (256, 320)  #: (rows, columns) of the random crops; (0, 0) for whole images
    batch: PositiveInt = 2  #: pairs in a batch, on each device
    flips: bool = True  #: mirror pairs at random: one in two left to right, one in ten upside down
    masks: bool = True  #: read occlusion masks, for validation too; without them, occluded points count like others
    workers: NonNegativeInt = 2  #: processes that read data sets; 0 to read in the training process
    overfit: NonNegativeInt = 0  #: train and validate on this many pairs, always the same; 0 for off

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        if not self.train or not all(self.train):
            sources = "a manifest (data.train=pairs.json), a data set or 'synthetic'"
            raise DeepMatchingError(f"Nothing to train on: set data.train to {sources}.")
        if SYNTHETIC in self.train and len(self.train) > 1:
            raise DeepMatchingError("data.train cannot mix 'synthetic' with data sets: use one or the other.")
        if len(self.crop) != 2 or (0 in self.crop and any(self.crop)):
            raise DeepMatchingError(f"data.crop must be [rows, columns] or [0, 0] for none, not {list(self.crop)}.")
        if self.is_synthetic and not any(self.crop):
            raise DeepMatchingError("Synthetic pairs have the size data.crop: set it to [rows, columns].")
        if self.is_synthetic and not self.photos:
            raise DeepMatchingError("Synthetic pairs are made from photographs: set data.photos to a folder of them.")
        for key in ("photos", "synthesis"):
            if getattr(self, key) and not self.is_synthetic:
                raise DeepMatchingError(f"data.{key} is for data.train='{SYNTHETIC}', which is not used: leave it out.")
        _check_arguments("data.synthesis", self.synthesis)
        _check_roots("data", self.root, self.train)
        return self

    @property
    def is_synthetic(self) -> bool:
        return self.train == (SYNTHETIC,)


class ValidationConfig(Section):
    """How the network is validated during training."""

    prefix = "validation."

    data: Names = ()  #: as ``data.train``; ``train`` for the training pairs themselves; empty for no validation
    root: Names = ()  #: as ``data.root``; empty for that of the same training data
    split: str = ""  #: as ``data.split``; empty for ``val``
    every: PositiveInt = 500  #: steps between validations
    limit: NonNegativeInt = 0  #: largest number of pairs, evenly spread over the data; 0 for all
    radius: int | Literal["full"] = RADIUS  #: R during validation, or ``full``
    reciprocal: Reciprocal = RECIPROCAL  #: how matches are verified: ``bins``, ``exact`` (the paper's) or ``none``
    rank: Rank = "confidence"  #: which match a pixel takes: the most confident, or that of the highest ``score``
    #: the best checkpoint has the largest sum of these metrics, joined by ``+``
    criterion: str = "+".join(f"acc@{threshold}" for threshold in THRESHOLDS)

    @model_validator(mode="after")
    def _check(self) -> "ValidationConfig":
        radius_in_pixels(self.radius, "validation.radius")
        for name in self.criterion.split("+"):
            check_choice("validation.criterion", name, _CRITERIA)
        if not all(self.data):
            raise DeepMatchingError("validation.data has an empty name: use data sets, manifests or 'train'.")
        for word in (TRAIN, SYNTHETIC):
            if word in self.data and len(self.data) > 1:
                raise DeepMatchingError(f"validation.data cannot mix '{word}' with data sets: use one or the other.")
        _check_roots("validation", self.root, self.data)
        return self


class OptimizerConfig(Section):
    """The optimizer and its learning rate schedule."""

    prefix = "optimizer."

    name: Literal["adamw", "sgd"] = "adamw"  #: ``adamw`` or ``sgd`` (with momentum, the paper's)
    lr: NonNegativeFloat = 1e-3  #: peak learning rate
    exponents_lr: NonNegativeFloat = 1.0  #: of ν_l, κ and log β_l, as a multiple of ``lr``, without weight decay
    loss_lr: NonNegativeFloat = 1.0  #: the same for the loss's own parameters (β)
    momentum: Fraction = 0.9  #: of SGD; β₁ of AdamW
    weight_decay: NonNegativeFloat = 1e-4  #: λ of the descriptor's parameters: λ‖w‖²/2 (SGD), or decoupled (AdamW)
    exponents_decay: NonNegativeFloat = 0.0  #: the same for the exponents that are learned, which shrink towards 0
    schedule: Literal["constant", "cosine"] = "cosine"  #: ``constant`` or ``cosine`` (down to ``final``)
    warmup: NonNegativeInt = 200  #: steps over which the learning rate rises from 0
    final: NonNegativeFloat = 0.0  #: learning rate at the end of the run, as a fraction of ``lr``
    clip: NonNegativeFloat = 1.0  #: largest norm of the gradient; 0 for no limit


class LossConfig(Section):
    """The arguments of :class:`deepmatching.network.losses.Objective`."""

    prefix = "loss."

    kind: str = "cross-entropy"  #: ``cross-entropy``, ``hinge`` (the paper's), ``indicator`` or ``package.module:Name``
    weights: dict[str, LossWeight] = {"Q0": 1.0}  #: of score volumes: S0, S1, … and Q0, Q1, …
    sigma: LossNumber = LOSS_SIGMA  #: σ of g_σ in pixels
    margin: LossNumber = HINGE_MARGIN  #: margin of the hinge
    balance: Fraction = 0.5  #: weight of the cells near the truth in ``indicator``; 0 for the paper's plain mean
    scale: LossNumber = CROSS_ENTROPY_BETA  #: initial β of the cross-entropy; β is learned
    subpixel: LossWeight = 0.0  #: weight of the error of refined matches; excludes ``model.subpixel`` 0
    occluded: bool = False  #: whether points that are occluded in the second image count
    confidence: LossWeight = 0.0  #: weight of the confidence network's loss, to train it together with the features
    flow: LossWeight = 0.0  #: weight of the error, in pixels, of the flow that the matches interpolate to
    flow_positions: FlowPositions = "peak"  #: of these matches: the peak of Q_0, or the soft arg-max of its peaks

    @model_validator(mode="after")
    def _check(self) -> "LossConfig":
        check_kind("loss.kind", self.kind)
        check_weights(self.weights)
        if self.flow_positions != "peak" and not self.flow:
            raise DeepMatchingError("loss.flow_positions is for loss.flow, which is 0: set loss.flow=0.05 too.")
        return self


class Config(Section):
    """A whole run."""

    out: str = "runs/train"  #: folder of the run; created if missing
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0  #: of weights, order and augmentation
    device: str = "auto"  #: ``auto`` (cuda, else mps, else cpu), ``cpu``, ``cuda`` or ``mps``
    steps: NonNegativeInt = 2000  #: optimizer steps; 0 for no limit
    minutes: NonNegativeFloat = 0.0  #: time limit; 0 for none. The schedule follows whichever limit is nearer.
    accumulate: PositiveInt = 1  #: batches whose gradients are averaged into one step
    amp: Amp = "off"  #: precision inside the descriptor: ``off`` (float32) or ``bf16``; scores stay float32
    ema: Fraction = 0.0  #: decay of the moving average of the weights, which is then what is validated; 0 for off
    log_every: PositiveInt = 20  #: steps between rows of the log
    checkpoint_every: PositiveInt = 500  #: steps between checkpoints; each validation is followed by one, too
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    loss: LossConfig = Field(default_factory=LossConfig)

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if not self.out:
            raise DeepMatchingError("The run needs a folder: set out to its name.")
        if not self.steps and not self.minutes:
            raise DeepMatchingError("The run would never end: set steps or minutes.")
        if self.loss.subpixel and self.model.subpixel == 0:
            raise DeepMatchingError("loss.subpixel needs matches that are refined: set model.subpixel=auto.")
        if self.model.learn == "confidence" and not self.model.init:
            what = "model.learn=confidence needs a trained model"
            raise DeepMatchingError(f"{what}: set model.init to compact, photo, vgg or a file.")
        trained, validated = ({name.lower() for name in names} for names in (self.data.train, self.validation.data))
        for key, value, used, supported in (
            ("data.passes", self.data.passes, trained | validated, WITH_PASSES),
            ("data.split_file", self.data.split_file, trained | validated, (WITH_SPLIT_FILE,)),
            ("data.split", self.data.split, trained, WITH_SPLITS),
            ("validation.split", self.validation.split, validated, WITH_SPLITS),
        ):
            if value and not used.intersection(supported):
                unused = ", and neither is used" if len(supported) > 1 else ", which is not used"
                raise DeepMatchingError(f"{key} is for {' and '.join(supported)}{unused}: leave it out.")
        if self.validation.data == (TRAIN,) and self.data.is_synthetic and not self.data.overfit:
            raise DeepMatchingError("No synthetic pair is seen twice: set validation.data to 'synthetic' or others.")
        if self.validation.data == (SYNTHETIC,) and not self.data.is_synthetic:
            raise DeepMatchingError("validation.data=synthetic needs data.train=synthetic: set either to other pairs.")
        return self


def _check_roots(section: str, roots: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Raise unless there is no root, one for all, or one for each data set."""
    if len(roots) not in {0, 1, len(names)}:
        folders = f"{len(roots)} folders for {len(names)} data sets"
        raise DeepMatchingError(f"{section}.root lists {folders}: give one for all, or one for each.")


def _fields(section: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted key and the field of every setting."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _fields(kind)
        else:
            yield section.prefix + name, field


SETTINGS = dict(_fields(Config))  #: every setting by its dotted key


def _first_problem(error: ValidationError, prefix: str, values: Mapping[str, Any]) -> DeepMatchingError:
    """Return an error that states the first problem in one sentence, with the dotted key of the setting."""
    problems = error.errors(include_url=False)
    first = problems[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), DeepMatchingError):
        return cause
    name, value = first["loc"][0], first["input"]
    key = f"{prefix}{name}"
    if first["type"] == "extra_forbidden":
        return _unknown_key(".".join([key, *list(value)[:1]]) if isinstance(value, dict) else key)
    if first["type"] == "model_type":
        return DeepMatchingError(f"{key} is a section, not a setting: set {_keys_of(key)}.")
    # A value that fits none of a setting's types has one problem for each of them.
    same = [problem["msg"] for problem in problems if problem["loc"][0] == name and problem["input"] is value]
    wanted = " or ".join(dict.fromkeys(same)).replace("Input should be ", "")
    if isinstance(values[str(name)], dict) and len(first["loc"]) > 1:
        key = f"{key}.{first['loc'][1]}"
    return DeepMatchingError(f"{key} must be {wanted}, not {short_repr(value)}.")


def _unknown_key(key: str) -> DeepMatchingError:
    near = difflib.get_close_matches(key, SETTINGS, n=3, cutoff=0.6)
    near = near or [k for k in SETTINGS if k.rpartition(".")[2] == key.rpartition(".")[2]]
    if near:
        remedy = f"did you mean {' or '.join(near)}?"
    elif keys := _keys_of(key.partition(".")[0]):
        remedy = f"use one of {keys}."
    else:
        remedy = "docs/training.md and the config.toml of every run list all settings."
    return DeepMatchingError(f"There is no setting '{key}': {remedy}")


def _keys_of(section: str) -> str:
    return ", ".join(key for key in SETTINGS if key.startswith(f"{section}."))
