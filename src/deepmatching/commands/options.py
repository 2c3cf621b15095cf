"""The options that several commands share, and checks of what users give.

A function under ``@command("radius", "device")`` has ``--radius`` and ``--device``, made from the fields of
:class:`deepmatching.settings.Settings`, and gets their values as ``settings``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from deepmatching.commands.machine import use_threads
from deepmatching.commands.messages import set_verbosity
from deepmatching.errors import DeepMatchingError, check_number, short_repr
from deepmatching.io.files import check_replaceable, check_suffix, check_writable
from deepmatching.settings import MAX_BYTES, MAX_PIXELS, MODEL, MODELS, Rank, Settings

if TYPE_CHECKING:
    from torch import Tensor

    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.io.masks import MaskLike
    from deepmatching.matcher import DeepMatcher


def argument(default: Any, metavar: str, help: str, **more: Any) -> Any:
    """Return an argument for typer, as the default of a parameter; see :func:`option`."""
    return typer.Argument(default, metavar=metavar, help=help, **more)


def option(
    default: Any, help: str, metavar: str | None = None, shown: str | None = None, flags: str = "", **more: Any
) -> Any:
    """Return an option for typer, as the default of a parameter; it must be given if its own default is ``...``.

    In ``--help``, ``metavar`` stands for the value, and ``shown`` says in words what the default is. Names that do not
    follow from the parameter's are ``flags``, with spaces between them.
    """
    return typer.Option(default, *flags.split(), metavar=metavar, help=help, show_default=shown or True, **more)


Edges = Literal["network", "gradient"]

MODEL_HELP = f"Model: {', '.join(MODELS)}, or the path of a .safetensors file."
RANK_HELP = (
    "A pixel takes the displacement of the match with the highest confidence, or with the highest score Q_0, as in the "
    "paper. Models without a confidence have the score alone."
)

IMAGE0 = argument(..., "A", "First image; matches start here.")
IMAGE1 = argument(..., "B", "Second image.")
NETWORK = option(MODEL, MODEL_HELP, "NAME|PATH")
LEAST_CONFIDENCE = option(
    None, "Keep matches with at least this probability of being right, 0 to 1; not for hog.", "P", "all", min=0, max=1
)
MASK0, MASK1 = (
    option(
        None,
        f"Match only pixels of the {name} image that are not black in this picture, or lie inside a polygon "
        "'x,y x,y x,y ...', or outside it: 'not x,y x,y x,y ...'.",
        "PICTURE|POLYGON",
    )
    for name in ("first", "second")
)
THREADS = option(None, "Number of threads on the CPU.", "N", "OMP_NUM_THREADS, or the cores that are free", min=1)
STRUCTURED_FOREST = option(None, "Detect edges with OpenCV's structured forest of this file (.yml.gz).", "MODEL")
JSON = option(None, "Also write the measurements to this file.", "FILE", flags="--json")
VERBOSE = option(False, "Print what is being done.", flags="-v --verbose")
QUIET = option(False, "Print errors only: no summary, notes or progress.", flags="-q --quiet")

#: The settings of commands whose result is matches.
MATCHING = (
    *("radius", "levels", "downscale", "reciprocal", "device", "memory", "half", "max_size", "bit_depth"),
    *("use_alpha", "search", "rotations", "scales"),
)


def command(*names: str, shown: Mapping[str, str] | None = None, **defaults: Any) -> Callable[..., Any]:
    """Make a function a command, with ``--verbose``, ``--quiet`` and options for the fields ``names`` of ``Settings``.

    These stand in place of the parameter ``settings``, which gets a dictionary of their values. They are checked, but
    not the device: a cluster may have one that this machine lacks. The command may have its own defaults, and its own
    words for a default (``shown``). The fields of a parameter that is a dataclass of options are options, too.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            if parameter.name == "settings" and names:
                parameters += [_of_setting(name, defaults, shown or {}) for name in names]
            elif is_dataclass(kind := parameter.annotation):
                groups[parameter.name] = kind
                types = get_type_hints(kind)
                parameters += [_of_typer(field.name, types[field.name], field.default) for field in fields(kind)]
            else:
                parameters.append(_of_typer(parameter.name, parameter.annotation, parameter.default, parameter.kind))
        parameters += [_of_typer("verbose", bool, VERBOSE), _of_typer("quiet", bool, QUIET)]
        signature = inspect.Signature(parameters)

        @functools.wraps(function)
        def changed(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = bound.arguments
            set_verbosity(values.pop("quiet"), values.pop("verbose"))
            if names:
                given = {name: values.pop(name) for name in names}
                parsed = {name: PARSERS[name](given[name]) for name in PARSERS if isinstance(given.get(name), str)}
                values["settings"] = given | parsed
                Settings(**{**values["settings"], "device": "cpu"})
            for name, kind in groups.items():
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            function(**values)

        changed.__signature__ = signature  # type: ignore[attr-defined]
        changed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return changed

    return decorate


def _of_typer(
    name: str, kind: Any, default: Any, place: inspect._ParameterKind = inspect.Parameter.KEYWORD_ONLY
) -> inspect.Parameter:
    """Return a parameter with its option beside its type, and no ``--no-NAME`` where that is the default."""
    of_typer = copy.copy(default)
    default, of_typer.default = of_typer.default, ...
    if default is ...:
        default = inspect.Parameter.empty
    elif default is False and not of_typer.param_decls:
        of_typer.param_decls = (f"--{name.replace('_', '-')}",)
    return inspect.Parameter(name, place, default=default, annotation=Annotated[kind, of_typer])


_TYPES = get_type_hints(Settings)
_FIELDS = {field.name: field for field in fields(Settings)}
SUBPIXEL_HELP: str = _FIELDS["subpixel"].metadata["help"]


def _of_setting(name: str, defaults: Mapping[str, Any], shown: Mapping[str, str]) -> inspect.Parameter:
    """Return the parameter for typer that stands for a field of ``Settings``."""
    field, kind = _FIELDS[name], _TYPES[name]
    default = defaults.get(name, field.default)
    if name in PARSERS:
        default, kind = (None, str | None) if default is None else (str(default), str)
    in_words = shown.get(name) or (field.metadata["shown"] if default is None else None)
    return _of_typer(name, kind, option(default, field.metadata["help"], field.metadata["metavar"], in_words))


def parse_radius(text: str) -> int | str:
    """Return a number of pixels, or the text for ``Settings`` to check."""
    try:
        return int(text)
    except ValueError:
        return text


def parse_rotations(text: str) -> int | str | tuple[float, ...]:
    """Return a number of rotations, degrees with commas between them, or the text for ``Settings`` to check."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else parse_list(text)


def parse_list(text: str) -> str | tuple[float, ...]:
    """Return the numbers between commas, or the text if there are words."""
    try:
        return tuple(float(number) for number in text.split(",") if number.strip())
    except ValueError:
        return text


def parse_memory(text: str) -> int:
    """Return the number of bytes of ``500MB``, ``2 GB`` or ``1.5g``."""
    parsed = re.fullmatch(r"\s*([0-9.]+)\s*([kmg]?)b?\s*", text, re.IGNORECASE)
    number, unit = parsed.groups() if parsed else ("", "")
    try:
        size = int(float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit.lower()]) if unit else int(number)
    except (ValueError, OverflowError):
        raise DeepMatchingError(f"--memory needs a size such as 500MB or 2GB, not {short_repr(text)}.") from None
    check_number("--memory, in bytes,", size, minimum=1, maximum=MAX_BYTES, whole=True)
    return size


#: The settings whose options are texts of our own, and how these are read.
PARSERS: dict[str, Callable[[str], Any]] = {
    "radius": parse_radius,
    "memory": parse_memory,
    "rotations": parse_rotations,
    "scales": parse_list,
}


def build_matcher(model: str, settings: Mapping[str, Any], threads: int | None = None) -> DeepMatcher:
    """Return the matcher of a model with the settings of a command."""
    from deepmatching.matcher import DeepMatcher

    use_threads(threads)
    return DeepMatcher.from_pretrained(model, **settings)


def parse_size(text: str) -> tuple[int, int]:
    """Return the rows and columns of ``1024x436``, a width and a height."""
    parsed = re.fullmatch("([0-9]+)x([0-9]+)", text)
    if not parsed:
        raise DeepMatchingError(f"--size needs a width and a height such as 1024x436, not '{text}'.")
    width, height = (int(side) if len(side) < 1000 else MAX_PIXELS + 1 for side in parsed.groups())
    if width * height > MAX_PIXELS:
        raise DeepMatchingError(f"--size is too large: an image has at most {MAX_PIXELS} pixels.")
    return height, width


def describe(
    model: str, matcher: DeepMatcher, preset: str | None, edges: str = "network", rank: Rank | None = None
) -> dict[str, Any]:
    """Return what to record of a model's matches, or of its flow with a preset; edges and ranks that change them, too.

    Ranks differ for models with a confidence only.
    """
    from deepmatching.flow import describe_preset
    from deepmatching.models import describe_model

    if preset is not None:
        more = {**describe_preset(preset), **({} if edges == "network" else {"edges": edges})}
    else:
        more = {"rank": "score"} if rank == "score" and matcher.network.confidence is not None else {}
    return {**more, **describe_model(model), **matcher.describe()}


def edges_in_words(edges: EdgesLike) -> str:
    """Return what is recorded of the edge detector that :func:`edge_source` gives."""
    return edges if isinstance(edges, str) else "structured forest"


def edge_source(edges: str, structured_forest: Path | None) -> EdgesLike:
    """Return the edge detector or edge map that ``--edges`` and ``--structured-forest`` name."""
    if structured_forest is None:
        return edges
    if edges != "network":
        raise DeepMatchingError("--edges and --structured-forest exclude each other: leave one out.")
    if not os.path.isfile(structured_forest):
        raise DeepMatchingError(f"There is no structured-forest model '{structured_forest}'; check the path.")
    from deepmatching.flow.edges import structured_forest_edges

    return functools.partial(structured_forest_edges, model=structured_forest)


def masks_of(texts: Iterable[str | None], images: Iterable[Tensor]) -> Iterator[MaskLike]:
    """Yield the masks of two loaded images that ``--mask0`` and ``--mask1`` name."""
    from deepmatching.io.images import size_of
    from deepmatching.io.masks import draw_polygon

    for number, (text, image) in enumerate(zip(texts, images, strict=True)):
        polygon = None if text is None else draw_polygon(text, size_of(image), f"mask{number}")
        yield text if polygon is None else polygon


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise if one of these options is given, that is, neither None nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            given = name if name.startswith("-") else f"--{name.replace('_', '-')}"
            raise DeepMatchingError(f"{given} {reason}")


def check_outputs(
    outputs: Iterable[tuple[Path | None, Callable[[Path], object]]], inputs: Iterable[Path | None] = ()
) -> None:
    """Raise before the work, not after it, if an output cannot be written.

    An output, which comes with the check of its suffix, is no input and no other output, and replaces no file that is
    not from this package.
    """
    read, written = [path for path in inputs if path is not None], list[Path]()
    for path, check in outputs:
        if path is not None:
            if any(is_same(path, other) for other in read):
                raise DeepMatchingError(f"'{path}' is an input and would be overwritten: give the result another name.")
            check(path)
            check_writable(path)
            check_replaceable(path)
            if any(is_same(path, other) for other in written):
                raise DeepMatchingError(f"Two results cannot go to the same file '{path}': give different names.")
            written.append(path)


#: Raises unless a file of measurements has the suffix of JSON.
check_json_suffix = functools.partial(check_suffix, suffixes=(".json",), kind="measurements")


def is_same(path: Path, other: Path) -> bool:
    """Tell whether two paths lead to the same file or folder, whether or not it exists."""
    try:
        return os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(path, other)
    except (OSError, ValueError):  # at least one does not exist
        return False
