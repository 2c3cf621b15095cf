"""A small valid file of every format that the package reads, and its reader."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from deepmatching.bulk_matching import MatchedPair, RunFolder, read_pairs
from deepmatching.bulk_matching.storage import MANIFEST, read_shard, write_shard
from deepmatching.data.datasets.opening import Manifest
from deepmatching.data.datasets.pairs import read_homography
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.results import Evaluation, PairResult
from deepmatching.flow.edges import load_edge_network, load_edges, save_edge_network
from deepmatching.flow.edges.edge_network import EdgeNetwork
from deepmatching.flow.sequence import FlowFolder
from deepmatching.io.flow import read_flow, write_flow
from deepmatching.io.images import load_image
from deepmatching.io.matches import SUFFIXES as MATCH_SUFFIXES
from deepmatching.io.matches import MatchArrays, read_matches, write_matches
from deepmatching.io.points import read_points
from deepmatching.matches import Matches
from deepmatching.models import build_network, load_network, save_network
from deepmatching.network.descriptors import VGG
from deepmatching.network.descriptors.pretrained import is_published, load_vgg
from deepmatching.training.checkpoints import Progress
from deepmatching.training.checkpoints import RunFolder as TrainingFolder
from deepmatching.training.config import Config, DataConfig, ModelConfig
from deepmatching.training.config_file import read_config, write_config
from deepmatching.training.log import read_log
from deepmatching.training.model import build_model
from deepmatching.training.optimization import Learner
from fuzzing.mutations import mutated

SIZE = (8, 12)


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        name: of the file.
        read: the reader; it may raise ``DeepMatchingError`` and nothing else.
        data: a valid file, or a part of one.
        whole: the file around a part of it, such as a zip archive around its mutated member.
    """

    name: str
    read: Callable[[Path], object]
    data: bytes
    whole: Callable[[bytes], bytes] = bytes

    def __str__(self) -> str:
        return self.name


def problem(kind: Format, folder: Path, random: Random) -> str:
    """Say what is wrong with the reader, shown by one mutated file, or nothing. The file stays in the folder."""
    path = folder / kind.name
    path.write_bytes(kind.whole(mutated(kind.data, random)))
    try:
        kind.read(path)
    except DeepMatchingError as error:
        text = str(error)
        return "" if text and "\n" not in text else f"not one sentence: {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def formats(folder: Path) -> Iterator[Format]:
    """Return all formats; the folder is for files that readers need beside the mutated one."""
    yield from _arrays(folder)
    yield from _pictures()
    yield from _texts(folder)
    yield from _weights(folder)


def check_readable(kinds: list[Format], folder: Path) -> None:
    """Raise unless every reader accepts its unchanged file."""
    for kind in kinds:
        path = folder / kind.name
        path.write_bytes(kind.whole(kind.data))
        kind.read(path)


# ---------------------------------------------------------------------- arrays


def _written(path: Path, write: Callable[[Path], object]) -> bytes:
    write(path)
    return path.read_bytes()


def _arrays(folder: Path) -> Iterator[Format]:
    generator = np.random.default_rng(0)
    flow = generator.normal(size=(*SIZE, 2)).astype(np.float32)
    for suffix in (".flo", ".pfm", ".npy", ".png"):
        yield Format(f"flow{suffix}", read_flow, _written(folder / f"flow{suffix}", lambda p: write_flow(p, flow)))
    points = generator.uniform(0, 10, (5, 2)).astype(np.float32)
    ones = np.ones(5, np.float32)
    matches = MatchArrays(points, points, ones, SIZE, SIZE, ones / 2, cycle_error=ones)
    for suffix in MATCH_SUFFIXES:
        path = folder / f"matches{suffix}"
        yield Format(path.name, read_matches, _written(path, lambda p: write_matches(p, matches, confidence=True)))
    stream = io.BytesIO()
    np.save(stream, points)
    yield Format("member.npz", read_matches, stream.getvalue(), _archive)
    yield Format("points.npy", read_points, stream.getvalue())
    for suffix, separator in ((".txt", " "), (".csv", ",")):
        lines = "".join(f"{x}{separator}{y}\n" for x, y in points.tolist())
        yield Format(f"points{suffix}", read_points, ("x,y\n" * (suffix == ".csv") + lines).encode())
    pair = MatchedPair(("a.png", "b.png"), Matches(**matches._asdict()))
    shard = _written(folder / "shard.npz", lambda p: write_shard(p, [pair]))
    yield Format("shard.npz", lambda path: read_shard(path, [pair.names]), shard)
    edges = generator.uniform(size=SIZE).astype(np.float32)
    stream = io.BytesIO()
    np.save(stream, edges)
    yield Format("edges.npy", lambda path: load_edges(path, SIZE), stream.getvalue())
    yield Format("edges.bin", lambda path: load_edges(path, SIZE), edges.tobytes())


def _archive(member: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("keypoints0", "keypoints1"):
            archive.writestr(f"{name}.npy", member)
    return stream.getvalue()


def _pictures() -> Iterator[Format]:
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)
    for suffix in (".png", ".jpg", ".bmp", ".tiff", ".ppm", ".webp"):
        yield Format(f"image{suffix}", load_image, cv2.imencode(suffix, pixels)[1].tobytes())
    grey = cv2.imencode(".png", pixels[:, :, 0])[1].tobytes()
    yield Format("edges.png", lambda path: load_edges(path, SIZE), grey)


# ---------------------------------------------------------------------- text


def _texts(folder: Path) -> Iterator[Format]:
    for name in ("a.png", "b.png", "ab.flo"):
        (folder / name).touch()
    entry = {"image0": "a.png", "image1": "b.png", "flow": "ab.flo", "dataset": "mine", "scene": "one"}
    yield Format("names.txt", lambda path: read_pairs(path, folder), b"a.png b.png\na.png\tb c.png\n")
    with RunFolder.store(folder).reserve():
        RunFolder.prepare(folder, {"radius": 80}, [("a.png", "b.png"), ("a.png", "ab.flo")], folder, 1)
    yield Format(MANIFEST, lambda path: RunFolder(path.parent), (folder / MANIFEST).read_bytes())
    yield Format("pairs.json", _open_manifest, json.dumps([entry, {**entry, "extra": [1, 2.5]}]).encode())
    metrics = {"acc@2": 50.0, "epe": 1.5, "coverage": 99.0}
    evaluation = Evaluation("matches", {"model": "hog"}, 2, (PairResult(0, "g", "n", 0.1, {"all": metrics}),))
    yield Format("evaluation.json", _summarise, json.dumps(evaluation.to_json()).encode())
    flows = {**dict.fromkeys(("epe", "err@3", "fl"), metrics["epe"]), "pixels": 96.0, "pixels epe": 96.0}
    dense = Evaluation("flow", {"model": "hog"}, 1, (PairResult(0, "g", "n", 0.1, {"all": flows}),))
    yield Format("flow-evaluation.json", _summarise, json.dumps(dense.to_json()).encode())
    record = {"settings": {"suffix": ".flo"}, "finished": {"frame_1": ["a.png, 3 bytes, 5 ns"]}}
    yield Format("record.json", _open_record, json.dumps(record).encode())
    config = folder / "plain.toml"
    write_config(Config(data=DataConfig(train=("pairs.json",))), config)
    yield Format("config.toml", read_config, config.read_bytes())
    yield Format("homography.txt", read_homography, b"1 0 3\n0 1.5 2e-3\n1e-5 0 1\n")
    yield Format("log.csv", read_log, b"step,loss\n1,0.5\n2,0.25\n")


def _open_manifest(path: Path) -> None:
    pairs = Manifest(path)
    assert pairs.contents_hash


def _summarise(path: Path) -> None:
    json.dumps(Evaluation.load(path).to_json())


def _open_record(path: Path) -> None:
    place = path.parent / "flows"
    place.mkdir(exist_ok=True)
    (place / "flow.json").write_bytes(path.read_bytes())
    FlowFolder(place, ".flo", {}, {"frame_1": ["a.png, 3 bytes, 5 ns"]})


# ---------------------------------------------------------------------- weights


def _weights(folder: Path) -> Iterator[Format]:
    network = build_network("compact", 8, widths=(2, 3), layers=(1, 1), dimensions=4, sharpness=20.0)
    data = _written(folder / "m.safetensors", lambda path: save_network(network, path))
    yield Format("model.safetensors", load_network, data)
    yield _metadata("model-settings.safetensors", load_network, folder / "m.safetensors", "settings")
    edge_network = EdgeNetwork((2, 2, 2, 2), (1, 1, 1, 1))
    data = _written(folder / "e.safetensors", lambda path: save_edge_network(edge_network, path))
    yield Format("edges.safetensors", load_edge_network, data)
    yield _metadata("edges-settings.safetensors", load_edge_network, folder / "e.safetensors", "settings")
    yield from _states(folder)
    weights = {f"conv{n}.weight": torch.zeros(2, 3) for n in ("1_1", "1_2")}
    yield Format("weights.safetensors", _load_published, save(weights))


def _metadata(name: str, read: Callable[[Path], object], path: Path, key: str) -> Format:
    """Return the metadata of a file of weights under one key, mutated inside a file that is in order."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)

    def whole(text: bytes) -> bytes:
        return save(tensors, {**metadata, key: text.decode("utf-8", "replace")})

    return Format(name, read, metadata[key].encode(), whole)


def _states(folder: Path) -> Iterator[Format]:
    settings = {"widths": [2, 3], "layers": [1, 1], "dimensions": 4}
    config = Config(model=ModelConfig(settings=settings, radius=8), data=DataConfig(train=("pairs.json",)))
    model = build_model(config.model, config.loss)
    learner = Learner(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.optimizer.step()
    run = TrainingFolder(folder)
    run.save_state(config, 1, learner, Progress(step=1, count=1, sums={"loss": 0.5}))

    def read(path: Path) -> Any:
        place = TrainingFolder(path.parent)
        place.state = path
        return place.load_state(config, 1, Learner(build_model(config.model, config.loss), config))

    yield Format("state.safetensors", read, run.state.read_bytes())
    for key in ("config", "processes", "progress", "optimizer_tensors"):
        yield _metadata(f"state-{key}.safetensors", read, run.state, key)


def _load_published(path: Path) -> None:
    """Load weights that are not of VGG-16: all that is expected beyond reading them is our own message."""
    is_published(path)
    try:
        load_vgg(VGG(), path)
    except DeepMatchingError as error:
        if "give weights of that network" not in str(error):
            raise
