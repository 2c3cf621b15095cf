"""Settings of interpolation and refinement, and presets: our own and those of the original (EpicFlow 1.00)."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from deepmatching.errors import DeepMatchingError, check_choice, check_number, check_type, short_repr

Model = Literal["affine", "mean"]

#: Levels of the second matching for flow: patches of up to 64 pixels. Larger ones give small objects the motion of what
#: is around them; without them, other matches are wrong. The confidence says which.
FEWER_LEVELS = 3


@dataclass(frozen=True)
class InterpolationSettings:
    """Settings of the interpolation from matches to a dense flow."""

    model: Model = "affine"  #: locally-weighted affine motion, or ``"mean"`` for the weighted mean (Nadaraya-Watson)
    neighbours: int = 60  #: number of nearest matches that a model is fitted to
    falloff: float = 1.6  #: k of their weights exp(−k D), where D is the geodesic distance
    contrast: float = 1.6  #: the edge strength is raised to this power; above 1, weak edges and texture count less
    #: How strongly affine models shrink towards wider ones. The original adds four points at ±0.1 pixels with weight
    #: 0.01, which equals a ridge of 2·10⁻⁶.
    ridge: float = 30.0
    wide: float = 0.25  #: the wider models have k · wide in place of k; with 0, models shrink towards translations
    saliency: float = 0.045  #: drop matches where the image is flatter than this; 0 keeps all
    group: int = 4  #: drop matches in smaller groups of neighbours that agree; 0 keeps all
    group_tolerance: float = 6.0  #: neighbours agree if their displacements differ by less than this, in pixels
    filter_neighbours: int = 25  #: number of nearest matches in the consistency filter
    consistency: float = 10.0  #: drop matches at least this far from their weighted mean, in pixels; 0 keeps all
    #: Keep the matches with at least this confidence, verified or not, and weight them by it; 0 keeps the verified
    #: ones, whatever their confidence. No effect on matches without a confidence.
    confidence: float = 0.6
    least_kept: float = 0.5  #: keep this fraction of the matches, the most confident ones, if fewer reach that
    #: Drop matches whose round trip, forward and back, misses its start by at least this many pixels; 0 keeps all. Not
    #: done, and no backward matching needed, if ``confidence`` decides.
    backward: float = 4.0
    #: What leaves the second image follows the motion of the camera if at least this share of the matches around does;
    #: 0 leaves it to the model.
    camera: float = 0.85

    def __post_init__(self) -> None:
        check_choice("model", self.model, get_args(Model))
        _check(self, at_least_one=("neighbours", "filter_neighbours"), positive=("contrast", "ridge"))
        for name in ("confidence", "least_kept", "camera"):
            check_number(name, getattr(self, name), minimum=0, maximum=1)


@dataclass(frozen=True)
class RefinementSettings:
    """From a flow to one that fits the images: α, γ and σ as in ``deepmatching.flow.refinement``."""

    steps: int = 5  #: times that the second image is warped and the flow corrected; 0 leaves the flow unchanged
    iterations: int = 20  #: iterations of successive over-relaxation in each step
    relaxation: float = 1.9  #: ω, between 0 and 2
    alpha: float = 1.0  #: weight of smoothness
    gamma: float = 0.72  #: weight of constant gradients
    sigma: float = 0.9  #: standard deviation of the Gaussian that smooths both images first, in pixels; 0 for none
    edges: float = 8.0  #: how fast smoothness falls with the gradient of the image
    #: How strongly pixels that leave the second image are held at the interpolated flow. Without it, smoothness alone
    #: would flatten the affine models there.
    hold: float = 0.05

    def __post_init__(self) -> None:
        _check(self, at_least_one=("iterations",), positive=("relaxation", "alpha"))
        check_number("relaxation", self.relaxation, below=2)


@dataclass(frozen=True)
class FlowSettings:
    """All settings of the way from matches to flow."""

    interpolation: InterpolationSettings = field(default_factory=InterpolationSettings)
    refinement: RefinementSettings = field(default_factory=RefinementSettings)
    #: Frames are matched with all levels and again with this many; at each point, the more confident match counts. None
    #: to match once. No effect if a number of levels was asked for, or if the confidence of matches does not decide.
    fewer_levels: int | None = FEWER_LEVELS

    def __post_init__(self) -> None:
        check_type("interpolation", self.interpolation, InterpolationSettings)
        check_type("refinement", self.refinement, RefinementSettings)
        if self.fewer_levels is not None:
            check_number("fewer_levels", self.fewer_levels, minimum=0, whole=True)


def _check(settings: Any, at_least_one: tuple[str, ...], positive: tuple[str, ...]) -> None:
    """Raise unless all numbers are at least 0, and those of these names more."""
    for entry in fields(settings):
        if entry.name != "model":
            bound = {"above": 0} if entry.name in positive else {"minimum": int(entry.name in at_least_one)}
            check_number(entry.name, getattr(settings, entry.name), whole=entry.type is int, **bound)  # type: ignore[arg-type]


def _original(
    neighbours: int, falloff: float, filter_neighbours: int, steps: int, gamma: float, sigma: float
) -> FlowSettings:
    """Return a preset of the original, which does not match backward.

    It relaxes pixel by pixel with ω = 1.9; in that order, our code gives its flow to the last digit stored. We use
    red-black relaxation, which converges slightly faster; ω = 1.885 comes closest.
    """
    common = {"contrast": 1.0, "ridge": 2e-6, "wide": 0, "group": 0, "consistency": 5.0, "confidence": 0, "backward": 0}
    common["camera"] = 0.0
    return FlowSettings(
        InterpolationSettings("affine", neighbours, falloff, filter_neighbours=filter_neighbours, **common),  # type: ignore[arg-type]
        RefinementSettings(steps, iterations=30, gamma=gamma, sigma=sigma, edges=5.0, hold=0.0, relaxation=1.885),
        fewer_levels=None,
    )


#: ``default`` is ours. It relies on the confidence of matches. ``classic`` does without, and takes its place for models
#: and matches that have none. ``original`` has the values in the original's code (its help text states others). The
#: rest are its options -sintel, -kitti and -middlebury.
PRESETS: dict[str, FlowSettings] = {
    "default": FlowSettings(),
    "classic": FlowSettings(
        InterpolationSettings(neighbours=80, falloff=1.1, contrast=1.25, group=5, confidence=0, camera=0),
        RefinementSettings(steps=8, iterations=30),
        fewer_levels=None,
    ),
    "original": _original(100, 0.8, 25, steps=5, gamma=0.71, sigma=1.0),
    "sintel": _original(160, 1.1, 25, steps=5, gamma=0.72, sigma=1.1),
    "kitti": _original(160, 1.1, 25, steps=2, gamma=0.77, sigma=1.7),
    "middlebury": _original(65, 0.2, 15, steps=25, gamma=0.72, sigma=1.1),
}


def preset(settings: str | FlowSettings) -> FlowSettings:
    """Return the settings with that name. Settings are returned unchanged."""
    if isinstance(settings, FlowSettings):
        return settings
    if not isinstance(settings, str) or settings not in PRESETS:
        raise DeepMatchingError(f"There is no preset {short_repr(settings)}: use {', '.join(PRESETS)}.")
    return PRESETS[settings]


def describe_preset(name: str) -> dict[str, Any]:
    """Return what results record of a preset, JSON-serializable: its name, and its values, which may change."""
    return {"preset": name, "flow_settings": asdict(preset(name))}


def adapt_to_model(settings: FlowSettings, has_confidence: bool) -> FlowSettings:
    """Return the settings, or ``classic``, which takes the place of ``default`` for matches without a confidence."""
    is_lacking = not has_confidence and settings == PRESETS["default"]
    return PRESETS["classic"] if is_lacking else settings
