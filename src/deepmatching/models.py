"""Models by name or file: descriptors and exponents as safetensors, never a pickle.

A model file holds the network's tensors. Its metadata holds what is needed to build the network: ``format``
("deepmatching"), ``descriptor`` (a name from ``DESCRIPTORS``, or the import path of a class: see
``deepmatching.extensions``), the descriptor's ``settings`` (JSON), ``pooling`` unless it is hard, and the settings of
the ``confidence`` network (JSON) if there is one. All other metadata is the model card.
"""

import hashlib
import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_choice, check_number, check_type
from deepmatching.extensions import find_extension, import_path_of, is_import_path
from deepmatching.io.files import PathLike, as_path, check_suffix
from deepmatching.io.structured import parse_json
from deepmatching.io.weights import NoInitialValues, check_counts, read_safetensors, write_safetensors
from deepmatching.network.confidence import ConfidenceNetwork
from deepmatching.network.descriptors import HOG, VGG, Compact, Descriptor
from deepmatching.network.network import Network
from deepmatching.network.operators.pooling import PoolingComponent
from deepmatching.settings import MODEL, MODELS, PHOTO_MODEL, RADIUS, Pooling

MODEL_FORMAT = "deepmatching"  #: format in the metadata of model files
STATE_FORMAT = "deepmatching-training-state"  #: format in the metadata of the states of training runs
#: Descriptors by name. Each takes ``downscale``.
DESCRIPTORS: dict[str, Callable[..., Descriptor]] = {"hog": HOG, "vgg": VGG, "compact": Compact}


def build_network(
    descriptor: str,
    radius: int | None = RADIUS,
    levels: int | None = None,
    sharpness: float | None = None,
    **settings: Any,
) -> Network:
    """Return an untrained network with a descriptor of :func:`descriptor_of`, built with these settings."""
    kind = descriptor_of(descriptor)
    if sharpness is not None:
        check_number("sharpness", sharpness, above=0)
    try:
        built = kind(**settings)
    except (TypeError, RuntimeError, OverflowError) as error:  # PyTorch's words are more than a line
        reason = f"cannot be built with these settings ({_first_line(error)})"
        raise DeepMatchingError(f"The {descriptor} descriptor {reason}.") from error
    return Network(built, radius, levels, sharpness=sharpness)


def descriptor_of(name: str) -> Callable[..., Descriptor]:
    """Return the descriptor of ``DESCRIPTORS``, or the class of an import path."""
    check_type("The descriptor", name, str)
    if name in DESCRIPTORS:
        return DESCRIPTORS[name]
    if not is_import_path(name):
        raise DeepMatchingError(f"Unknown descriptor '{name}': use {', '.join(DESCRIPTORS)} or package.module:Class.")
    kind = find_extension(name)
    if not (isinstance(kind, type) and issubclass(kind, Descriptor)):
        raise DeepMatchingError(f"'{name}' is not a subclass of Descriptor: give the path of one.")
    return kind


def pooling_of(name: str, where: str = "") -> Pooling | PoolingComponent:
    """Return the name of a pooling as it is, and for an import path an object of its class."""
    pooling: Any = find_extension(name)() if is_import_path(name) else name
    if not isinstance(pooling, PoolingComponent):
        check_choice(f"The pooling{where}", pooling, get_args(Pooling))
    return pooling


def build_confidence(descriptor: Descriptor, **settings: Any) -> ConfidenceNetwork:
    """Return an untrained confidence network for matches of this descriptor."""
    return ConfidenceNetwork(descriptor.channels, descriptor.patch, descriptor.cells_of_patch, **settings)


def load_network(
    model: PathLike,
    radius: int | None = RADIUS,
    levels: int | None = None,
    downscale: int | None = None,
    pooling: Pooling | None = None,
) -> Network:
    """Build the network of a model.

    Args:
        model: a name from ``deepmatching.settings.MODELS``, or the path of a file that :func:`save_network` wrote.
        radius, levels: see :class:`~deepmatching.network.network.Network`.
        downscale: cells are 2^downscale pixels wide; None for the model's own (1 for the models of the package). With
            another one, the confidence is left out: it was trained on the model's own cells.
        pooling: ``hard`` or ``soft``; None for the way in which the model was trained. A model without temperatures
            gets ``deepmatching.settings.TEMPERATURE`` at all levels.
    """
    if pooling is not None:
        check_choice("pooling", pooling, get_args(Pooling))
    if str(model) == "hog":
        descriptor = HOG(downscale=1 if downscale is None else downscale)
        return Network(descriptor, radius, levels, pooling=pooling or "hard")
    path = model_path(model)
    tensors, metadata = read_model(path)
    try:
        kind, trained = descriptor_of(metadata["descriptor"]), metadata.get("pooling", "hard")
        settings = parse_json(metadata.get("settings", "{}"))
        judge = parse_json(metadata["confidence"]) if "confidence" in metadata else None
        if downscale not in (None, settings.get("downscale", 1)):
            settings, judge = {**settings, "downscale": downscale}, None
            tensors = {name: t for name, t in tensors.items() if not name.startswith("confidence.")}
        for counts in (settings, judge or {}):
            check_counts(counts, tensors)

        def build() -> Network:
            descriptor = kind(**settings)
            parts: Any = {} if judge is None else {"confidence": build_confidence(descriptor, **judge)}
            parts["sharpness"] = 1.0 if "sharpness" in tensors else None
            return Network(descriptor, radius, levels, **parts, pooling=pooling_of(trained, f" in '{path}'"))

        with NoInitialValues():
            with torch.device("meta"):  # takes no memory, whatever the sizes in the file
                _check_tensors(build(), tensors, path)
            network = build()
    except DeepMatchingError:
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        problem = f"The settings in '{path}' do not fit its descriptor ({_first_line(error)})"
        raise DeepMatchingError(f"{problem}; save the model again.") from error
    network.exponents.data = tensors["exponents"].to(network.exponents.dtype)
    network.load_state_dict(tensors)
    if pooling is not None:
        network.use_pooling(pooling)
    network.other_model = PHOTO_MODEL if str(model) == MODEL else None
    return network


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def model_path(model: PathLike) -> Path:
    """Return the file of a model other than ``hog``, which has no weights."""
    shipped = files("deepmatching") / "weights" / f"{model}.safetensors"
    if str(model) in MODELS and shipped.is_file():
        return Path(str(shipped))
    path = as_path(model)
    if not os.path.isfile(path):
        names = ", ".join(map(repr, MODELS))
        raise DeepMatchingError(f"Unknown model '{model}': use {names} or the path of a .safetensors file.")
    return path


def describe_model(name: str) -> dict[str, str]:
    """Return a model's name and the hash of its file, since a model may be trained further under the same name."""
    if name in ("hog", "download"):  # these have no file
        return {"model": name}
    return {"model": name, "sha256": hashlib.sha256(model_path(name).read_bytes()).hexdigest()[:16]}


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a model file."""
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") == STATE_FORMAT:
        raise DeepMatchingError(f"'{path}' is the state of a training run; use best.safetensors beside it.")
    if metadata.get("format") != MODEL_FORMAT or not (name := metadata.get("descriptor")):
        raise DeepMatchingError(f"'{path}' is not a deepmatching model; save one with DeepMatcher.save.")
    if name not in DESCRIPTORS and not is_import_path(name):
        where = "deepmatching.models.DESCRIPTORS"
        raise DeepMatchingError(f"'{path}' has the unknown descriptor '{name}': first add its class to {where}.")
    return tensors, metadata


def _check_tensors(network: Network, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise unless the network can be filled with the tensors of a model file."""
    own, problem = network.state_dict(), ""
    if odd := ", ".join(sorted(set(own) ^ set(tensors))):
        problem = f"the tensors of another architecture (differing: {odd})"
    elif tensors["exponents"].ndim != 1 or not len(tensors["exponents"]) or not (tensors["exponents"] > 0).all():
        problem = "exponents that are not positive numbers"
    elif "sharpness" in tensors and not (tensors["sharpness"] > 0).all():
        problem = "a sharpness that is not positive"
    elif mismatched := [n for n in own if n != "exponents" and own[n].shape != tensors[n].shape]:
        problem = f"tensors of unexpected shapes ({', '.join(mismatched)})"
    if problem:
        raise DeepMatchingError(f"'{path}' holds {problem}; train or save it again.")


def name_of(descriptor: Descriptor) -> str:
    """Return the name of a descriptor's class in ``DESCRIPTORS``, or its import path."""
    return next((name for name, kind in DESCRIPTORS.items() if type(descriptor) is kind), None) or _path_of(descriptor)


def _path_of(part: object) -> str:
    if (path := import_path_of(type(part))) is None:
        where = "in a module that can be imported where it is loaded"
        raise DeepMatchingError(f"{type(part).__name__} cannot be saved: define it {where}.")
    return path


def save_network(network: Network, path: PathLike, dtype: torch.dtype = torch.float32, **metadata: str) -> None:
    """Write the network's tensors, and as metadata how to build it and the given model card, to ``.safetensors``.

    The file holds the descriptor's tensors in ``dtype``: float16 halves its size. A loaded network is always float32.
    """
    check_suffix(path, (".safetensors",), "model")
    tensors = {n: t.to(dtype if t.ndim > 1 else torch.float32) for n, t in network.state_dict().items()}
    descriptor, settings = name_of(network.descriptor), json.dumps(network.descriptor.settings())
    structure = {"format": MODEL_FORMAT, "descriptor": descriptor, "settings": settings}
    if network.pooling != "hard":
        structure["pooling"] = network.pooling if isinstance(network.pooling, str) else _path_of(network.pooling)
    if network.confidence is not None:
        structure["confidence"] = json.dumps(network.confidence.settings())
    write_safetensors(path, tensors, {**metadata, **structure})
