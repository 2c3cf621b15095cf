"""Settings of the flow: one of our own, and those of the original program (EpicFlow 1.00)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

from deepmatching.errors import DeepMatchingError

Model = Literal["affine", "mean"]


@dataclass(frozen=True)
class InterpolationSettings:
    """From matches to a flow at every pixel.

    Attributes:
        model: ``"affine"``: locally-weighted affine motion; ``"mean"``: the weighted mean (Nadaraya-Watson).
        neighbours: number of nearest matches that a model is fitted to.
        falloff: k of their weights exp(−k D), D the geodesic distance.
        contrast: the edge strength is raised to this power: above 1, weak edges and texture count less.
        ridge: how strongly affine models shrink to wider ones. The original adds four points at ±0.1 pixels with
            weight 0.01, which is the same as a ridge of 2·10⁻⁶.
        wide: those are fitted with k · wide in place of k; 0: models shrink to translations.
        saliency: matches in flatter places than this are dropped; 0 keeps them.
        group: matches that fewer than this number of neighbours, and neighbours of neighbours, agree with are
            dropped; 0 keeps them.
        group_tolerance: two neighbours agree if their displacements differ by less, in pixels.
        filter_neighbours: number of nearest matches that the consistency of a match is judged by.
        consistency: matches this far or further from the weighted mean of those are dropped, in pixels; 0 keeps them.
        backward: if matches from the second image to the first are given, those that lead back this far or
            further from the start are dropped, in pixels; 0 keeps them, and nobody needs to match backward.
    """

    model: Model = "affine"
    neighbours: int = 80
    falloff: float = 1.1
    contrast: float = 1.25
    ridge: float = 30.0
    wide: float = 0.25
    saliency: float = 0.045
    group: int = 5
    group_tolerance: float = 6.0
    filter_neighbours: int = 25
    consistency: float = 10.0
    backward: float = 4.0

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise DeepMatchingError(f"The model must be {' or '.join(get_args(Model))}, not {self.model!r}.")
        _check(self, at_least_one=("neighbours", "filter_neighbours"), positive=("contrast", "ridge"))


@dataclass(frozen=True)
class RefinementSettings:
    """From a flow to one that fits the images: α, γ, δ and σ as in ``deepmatching.flow.refinement``.

    Attributes:
        steps: times that the second image is warped and the flow corrected; 0 leaves the flow as it is.
        iterations: of successive over-relaxation in each step.
        relaxation: ω, between 0 and 2.
        alpha: weight of smoothness.
        gamma: weight of constant gradients.
        delta: weight of constant colours.
        sigma: both images are smoothed by so many pixels first; 0 does not.
        edges: how fast smoothness falls with the gradient of the image.
        hold: how strongly pixels that leave the second image are held at the interpolated flow. Without it, smoothness
            alone would flatten the affine models there.
    """

    steps: int = 8
    iterations: int = 30
    relaxation: float = 1.9
    alpha: float = 1.0
    gamma: float = 0.72
    delta: float = 0.0
    sigma: float = 0.9
    edges: float = 8.0
    hold: float = 0.05

    def __post_init__(self) -> None:
        _check(self, at_least_one=("iterations",), positive=("relaxation", "alpha"))
        if self.relaxation >= 2:
            raise DeepMatchingError(f"relaxation must be less than 2, not {self.relaxation!r}.")


@dataclass(frozen=True)
class FlowSettings:
    """Everything between matches and flow."""

    interpolation: InterpolationSettings = field(default_factory=InterpolationSettings)
    refinement: RefinementSettings = field(default_factory=RefinementSettings)


def _check(settings: Any, at_least_one: tuple[str, ...], positive: tuple[str, ...]) -> None:
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if entry.name == "model":
            continue
        whole = entry.type == "int"
        if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
            raise DeepMatchingError(f"{entry.name} must be a {'whole ' if whole else ''}number, not {value!r}.")
        if entry.name in at_least_one and value < 1:
            raise DeepMatchingError(f"{entry.name} must be at least 1, not {value!r}.")
        number = float(value)
        if not (number > 0 if entry.name in positive else number >= 0) or number == float("inf"):
            bound = "greater than 0" if entry.name in positive else "0 or more"
            raise DeepMatchingError(f"{entry.name} must be {bound} and finite, not {value!r}.")


#: What the original's parameters have in common; it does not match backward. It relaxes pixel by pixel with ω = 1.9;
#: done so, ours gives its flow to the last digit stored. Updating every second pixel at once converges a little faster;
#: 1.885 comes closest.
_ORIGINAL = FlowSettings(
    InterpolationSettings(
        neighbours=100,
        falloff=0.8,
        contrast=1.0,
        ridge=2e-6,
        wide=0,
        group=0,
        filter_neighbours=25,
        consistency=5.0,
        backward=0,
    ),
    RefinementSettings(steps=5, gamma=0.71, sigma=1.0, edges=5.0, hold=0.0, relaxation=1.885),
)


def _original(neighbours: int, falloff: float, filter_neighbours: int, **refinement: Any) -> FlowSettings:
    return FlowSettings(
        replace(_ORIGINAL.interpolation, neighbours=neighbours, falloff=falloff, filter_neighbours=filter_neighbours),
        replace(_ORIGINAL.refinement, **refinement),
    )


#: ``default`` is ours. ``original`` has the values in the original's code, which its help text does not give, and the
#: others those of its options -sintel, -kitti and -middlebury.
PRESETS: dict[str, FlowSettings] = {
    "default": FlowSettings(),
    "original": _ORIGINAL,
    "sintel": _original(160, 1.1, 25, steps=5, gamma=0.72, sigma=1.1),
    "kitti": _original(160, 1.1, 25, steps=2, gamma=0.77, sigma=1.7),
    "middlebury": _original(65, 0.2, 15, steps=25, gamma=0.72, sigma=1.1),
}


def preset(settings: str | FlowSettings) -> FlowSettings:
    """The settings of that name; settings themselves pass."""
    if isinstance(settings, FlowSettings):
        return settings
    if settings not in PRESETS:
        raise DeepMatchingError(f"There is no preset '{settings}': use {', '.join(PRESETS)}.")
    return PRESETS[settings]
