"""The settings of a matcher, and the defaults that modules share.

This module does not import PyTorch, so that ``--help`` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from deepmatching.errors import DeepMatchingError, check_choice, check_number, check_type, short_repr

if TYPE_CHECKING:
    import torch

    Device = str | torch.device
else:
    Device = str  #: a name of a device, or a ``torch.device``

Reciprocal = Literal["bins", "exact", "none"]  #: how matches are verified; see ``network.operators.decoding``
RECIPROCAL: Reciprocal = "bins"
RECIPROCAL_IN_PAPER: Reciprocal = "exact"  #: the paper's own way to verify them (its first footnote)
Rank = Literal["score", "confidence"]  #: what ranks the matches that a pixel can move by: the paper's Q_0 or confidence
MODELS = ("compact", "photo", "vgg", "hog")  #: models that ship with the package
MODEL = "compact"  #: the default model
PHOTO_MODEL = "photo"  #: what the default model leaves to it: pairs in which it finds little, see ``Settings.auto``
RADIUS = 80  #: largest displacement along each axis, in pixels

#: The same for flow. It is larger because a pixel that moves further than the radius has no correct match, and a wrong
#: object costs more than the extra time.
FLOW_RADIUS = 160

MAX_RADIUS = 1_000_000  #: larger than any image: a larger radius is a typing error
FULL: Final = "full"  #: the users' word for "no limit on the displacement". Inside the package, no limit is None.
EXPONENT = 1.4  #: ν, the exponent of every level before training
Pooling = Literal["hard", "soft"]  #: how scores are pooled and unpooled; see ``network.operators.soft_pooling``
TEMPERATURE = 50.0  #: β, the temperature of every level of soft pooling before training
PRESET = "default"  #: preset of the flow settings
THRESHOLDS = (2, 5, 10)  #: thresholds T of acc@T, in pixels
SEARCH_ROTATIONS = 8  #: default number of rotations that a search tries, evenly spaced

#: Default zooms of the second image that a search tries. Every second zoom is offset by half a rotation step, so that
#: neighbours in zoom fill the gaps between rotations.
SEARCH_SCALES = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)

MAX_ROTATIONS = 72  #: most rotations, or scales, that can be searched
MIN_SCALE = 0.1  #: smallest zoom that can be searched
MAX_SCALE = 10.0  #: largest zoom that can be searched

#: Below this agreement of the matches (``Matches.agreement``), commands warn that the result is probably wrong. Pairs
#: that the method cannot match reach 0.20, those with acc@10 above 40 % have at least 0.30; see
#: docs/experiments/matches.md.
MIN_AGREEMENT = 0.25

#: The same for matches with a confidence: the expected fraction of reference points with a right match. Pairs that the
#: method cannot match reach 0.05; see docs/experiments/matches.md.
MIN_EXPECTED = 0.1
CORRECT_WITHIN = 3.0  #: a match is right if it is less than this many pixels off; confidence is the probability of that
MIN_CONFIDENCE = 0.5  #: matches that are not verified are kept as well if their confidence is at least this

#: When matches are propagated, every pixel takes the displacement of the most confident match within this many pixels
#: along each axis.
PROPAGATION_RADIUS = 8

LOSS_SIGMA = 1.5  #: σ of g_σ in the losses, in pixels
HINGE_MARGIN = 1.0  #: margin of the structured hinge loss
CROSS_ENTROPY_BETA = 10.0  #: β of the cross-entropy loss before training
MAX_PIXELS = 2**30  #: largest number of pixels of an image: OpenCV reads no larger one
MAX_BYTES = 2**63 - 1  #: largest amount of memory that can be given: what 64-bit systems can count
AUTO_SIZE = 640  #: longer side in pixels at which images are searched if matching at their own size has failed

Radius = int | Literal["full"]


def _option(default: Any, help: str, metavar: str | None = None, shown: str | None = None) -> Any:
    """Return a field of :class:`Settings`; ``--help`` shows ``metavar`` for its value and ``shown`` for its default."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "shown": shown})


@dataclass(frozen=True)
class Settings:
    """The settings of a matcher. Every value is checked here, once; commands make their options from these fields.

    None stands for the default in brackets; ``memory`` is a number of bytes, ``rotations`` and ``scales`` are lists.
    """

    radius: Radius | None = _option(
        None, f"Largest displacement along each axis, in pixels; '{FULL}' sets no limit.", f"PIXELS|{FULL}", str(RADIUS)
    )
    levels: int | None = _option(
        None,
        "Number of aggregation levels.",
        "N",
        "the original's rule for the image's size; flow matches again with 3",
    )
    downscale: int | None = _option(
        None, "Make descriptor cells 2^N pixels wide.", "0|1|2", "as the model was trained; hog: 1"
    )
    reciprocal: Reciprocal = _option(
        RECIPROCAL,
        "Keep a match if it is the best one into its 8x8-pixel target bin (bins) or onto its exact target pixel "
        "(exact); none keeps all.",
    )
    device: Device = _option("auto", "Device to compute on; auto prefers cuda, then mps.", "auto|cpu|cuda|mps")
    memory: int | None = _option(
        None,
        "Memory that matching may use, such as 500MB or 2GB, beyond the 350 MB of the process itself. If one pass "
        "needs more, scores are computed in strips, with the same result; what does not fit even so is refused.",
        "SIZE",
        "4/5 of the free memory",
    )
    half: bool = _option(
        False, "Correlate and store scores in half precision: faster, needs CUDA; a few matches may differ."
    )
    subpixel: bool = _option(
        True, "Move matches between the cells of 2 pixels, if the model has learned to; or leave them on the cells."
    )
    max_size: int | None = _option(
        None,
        "Match larger images at a reduced size, with this many pixels along the longer side. The result is in "
        "pixels of the original size; the radius is in those of the reduced one.",
        "PIXELS",
        "no limit",
    )
    bit_depth: int | None = _option(None, "Bits in use of 16-bit images, such as 12.", "BITS", "16")
    use_alpha: bool = _option(
        False, "The alpha of an image is its mask: pixels that are more transparent than opaque are not matched."
    )
    pooling: Pooling | None = _option(
        None, "Pool scores by their maximum, as the paper does, or softly.", shown="as the model was trained"
    )
    search: bool = _option(
        False,
        "Find how the second image is turned and zoomed, on small images first: 8 rotations at 9 scales from 0.25 "
        "to 4, unless --rotations or --scales say otherwise.",
    )
    rotations: int | Sequence[float] | None = _option(
        None,
        "Rotations of the second image to try: how many, evenly spaced (8), or a list (0,90,180,270).",
        "N|DEGREES",
        "0; with --search 8",
    )
    scales: Sequence[float] | None = _option(
        None, "Scales of the second image to try, such as 0.5,0.71,1,1.41,2.", "LIST", "1; with --search 0.25 to 4"
    )
    auto: bool = _option(
        True,
        "If a right match is expected at less than a tenth of the points and no radius is given, match again without a "
        "limit and with a search, at 640 pixels, by photo in place of compact; keep what is better.",
    )

    def __post_init__(self) -> None:
        check_choice("reciprocal", self.reciprocal, get_args(Reciprocal))
        for name in ("half", "subpixel", "use_alpha", "search", "auto"):
            check_type(name, getattr(self, name), bool)
        if not isinstance(self.device, str) or self.device not in ("auto", "cpu"):
            choose_device(self.device)  # imports PyTorch, during which Ctrl-C is not heard
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                check(value)

    @property
    def matching_radius(self) -> int | None:
        """The radius of matching in pixels; None for no limit."""
        return radius_in_pixels(RADIUS if self.radius is None else self.radius)

    @classmethod
    def of(cls, **settings: Any) -> Settings:
        """Build settings; raise on an unknown name."""
        known = [setting.name for setting in fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            raise DeepMatchingError(f"There is no setting '{unknown[0]}': use {', '.join(known)}.")
        return cls(**settings)

    @property
    def searches(self) -> bool:
        """Whether rotations and scales are tried."""
        return self.search or self.rotations is not None or self.scales is not None

    @property
    def leaves_choice(self) -> bool:
        """Whether matching may search by itself where it has failed; see ``auto``."""
        return self.auto and self.radius is None

    def without_search(self) -> Settings:
        """Return the same settings for plain matching, without a search even where it fails."""
        return replace(self, search=False, rotations=None, scales=None, auto=False)

    def describe(self) -> dict[str, Any]:
        """Return the settings that results depend on, JSON-serializable."""
        left_out = {"device", "memory"} | ({"pooling"} if self.pooling is None else set())
        if not self.searches:  # older runs, which do not name them, can be continued
            left_out |= {"search", "rotations", "scales"}
        if not self.use_alpha:  # nor this
            left_out |= {"use_alpha"}
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def transformations(self) -> list[tuple[float, float]]:
        """The rotations, in degrees, and zooms to search: only (0, 1) without a search."""
        rotations = rotations_in_degrees(self.rotations or (SEARCH_ROTATIONS if self.search else 1))
        scales = scales_to_try(self.scales or (SEARCH_SCALES if self.search else (1,)))
        if self.rotations is None and self.scales is None and self.search:
            step, middle = 180.0 / SEARCH_ROTATIONS, SEARCH_SCALES.index(1.0)
            return [(r + step * ((n - middle) % 2), scale) for n, scale in enumerate(scales) for r in rotations]
        return [(rotation, scale) for scale in scales for rotation in rotations]


Settings.__doc__ = f"{Settings.__doc__}\n    Attributes:\n" + "".join(
    f"        {each.name}: {each.metadata['help']} [{each.metadata['shown'] or each.default}]\n"
    for each in fields(Settings)
)


def rotations_in_degrees(rotations: Any) -> tuple[float, ...]:
    """Return the rotations to try, in degrees: those of a list, or a number of them from 0 on."""
    if isinstance(rotations, Integral) and not isinstance(rotations, bool):
        if not 1 <= (number := int(rotations)) <= MAX_ROTATIONS:
            degrees = f"a list of degrees with a comma such as 0,90 or 90, and not {short_repr(rotations)}"
            raise DeepMatchingError(f"rotations must be a number of rotations from 1 to {MAX_ROTATIONS}, or {degrees}.")
        return tuple(360.0 * n / number for n in range(number))
    return _numbers(rotations, "rotations", "a number of rotations or a list of degrees", -360.0, 360.0)


def scales_to_try(scales: Any) -> tuple[float, ...]:
    """Return the zooms of the second image to try."""
    return _numbers(scales, "scales", "a list of scales", MIN_SCALE, MAX_SCALE)


def _numbers(values: Any, name: str, expected: str, minimum: float, maximum: float) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MAX_ROTATIONS:
        raise DeepMatchingError(f"{name} must be {expected}, at most {MAX_ROTATIONS}, not {short_repr(values)}.")
    for value in values:
        check_number(f"Each of {name}", value, minimum=minimum, maximum=maximum)
    return tuple(dict.fromkeys(float(value) for value in values))


def radius_in_pixels(radius: Any, name: str = "The radius") -> int | None:
    """Return the radius in pixels; None, no limit, for ``"full"``."""
    if isinstance(radius, str) and radius == FULL:
        return None
    if not isinstance(radius, Integral) or isinstance(radius, bool) or radius <= 0:
        raise DeepMatchingError(f"{name} must be a positive number of pixels or '{FULL}', not {short_repr(radius)}.")
    if int(radius) > MAX_RADIUS:
        raise DeepMatchingError(f"{name} must be at most {MAX_RADIUS} pixels; use '{FULL}' for no limit.")
    return int(radius)


#: What checks the settings that may be None.
_CHECKS: dict[str, Callable[[Any], object]] = {
    "radius": radius_in_pixels,
    "levels": partial(check_number, "levels", minimum=0, whole=True),
    "downscale": partial(check_number, "downscale", minimum=0, maximum=2, whole=True),
    "memory": partial(check_number, "memory, in bytes,", minimum=1, maximum=MAX_BYTES, whole=True),
    "max_size": partial(check_number, "max_size", minimum=16, maximum=MAX_PIXELS, whole=True),
    "bit_depth": partial(check_number, "bit_depth", minimum=8, maximum=16, whole=True),
    "pooling": partial(check_choice, "pooling", allowed=get_args(Pooling)),
    "rotations": rotations_in_degrees,
    "scales": scales_to_try,
}


def choose_device(device: Device) -> torch.device:
    """Return the device of that name, or raise if it is absent; ``auto`` prefers cuda, then mps."""
    import torch

    if isinstance(device, str) and device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise DeepMatchingError(f"Unknown device {short_repr(device)}: use auto, cpu, cuda or mps.") from None
    is_present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (chosen.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not is_present.get(chosen.type, False):
        raise DeepMatchingError(f"There is no usable device '{chosen}' on this machine: use --device auto or cpu.")
    return chosen
