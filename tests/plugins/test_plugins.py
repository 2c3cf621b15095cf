"""The matcher inside other libraries, or inside their documented interfaces where they are not installed."""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.matcher import DeepMatcher
from deepmatching.plugins import MatcherModule
from deepmatching.plugins.kornia import DeepMatching

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 16, "device": "cpu"}

Load = Callable[[str], ModuleType]


@pytest.fixture
def images(pair: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    first, second = (torch.from_numpy(image).permute(2, 0, 1).float() / 255 for image in pair)
    return first, second


class _BaseModel(nn.Module):
    """The interface of hloc and of glue-factory: a configuration, and two methods of subclasses."""

    def __init__(self, conf: dict[str, Any]) -> None:
        super().__init__()
        self._init({**self.default_conf, **conf})  # type: ignore[operator, dict-item]

    def forward(self, data: dict[str, Any]) -> dict[str, Tensor]:
        return self._forward(data)  # type: ignore[operator]


class _BaseMatcher:
    """The interface of vismatch, up to its RANSAC."""

    def __init__(self, device: str, **settings: Any) -> None:
        self.settings = settings

    def __call__(self, *images: Tensor) -> dict[str, Any]:
        matched0, matched1, *_, confidences = self._forward(*images)  # type: ignore[attr-defined]
        homography = np.eye(3)
        homography[:2, 2] = (matched1 - matched0).median(dim=0).values
        values = {"matched_kpts0": matched0, "matched_confidences": confidences, "H": homography}
        return {**values, "num_inliers": len(matched0)}


class _FlowModel(nn.Module):
    """The interface of ptlflow."""

    def __init__(self, output_stride: int) -> None:
        super().__init__()


#: Of each library, the modules that its adapter imports, and what is in the last one.
INTERFACES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "hloc": [("hloc.matchers", {}), ("hloc.utils.base_model", {"BaseModel": _BaseModel})],
    "gluefactory": [("gluefactory.models.base_model", {"BaseModel": _BaseModel})],
    "vismatch": [("vismatch", {"BaseMatcher": _BaseMatcher})],
    "ptlflow": [
        ("ptlflow.models.base_model.base_model", {"BaseModel": _FlowModel}),
        ("ptlflow.utils.registry", {"register_model": lambda model: model}),
    ],
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import the adapter to a library."""

    def imported(library: str) -> ModuleType:
        try:
            for name, _ in INTERFACES[library]:
                importlib.import_module(name)
        except ImportError:
            for name, content in INTERFACES[library]:
                parts = name.split(".")
                for end in range(1, len(parts) + 1):
                    module = ModuleType(".".join(parts[:end]))
                    module.__path__ = []
                    monkeypatch.setitem(sys.modules, module.__name__, module)
                vars(module).update(content)
        for name in (f"deepmatching.plugins.{library}", f"{library}.matchers.deepmatching"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that both are forgotten after the test
            del sys.modules[name]
        return importlib.import_module(f"deepmatching.plugins.{library}")

    return imported


def test_a_module_matches_each_pair_and_has_the_networks_parameters(images: tuple[Tensor, Tensor]) -> None:
    module = MatcherModule(**SETTINGS).eval()
    found = module(torch.stack(images), torch.stack(images[::-1]))
    expected = DeepMatcher.from_pretrained(**SETTINGS).match(*images)
    assert len(found) == 2 and torch.equal(found[0].keypoints1, expected.keypoints1)
    assert "network.exponents" in module.state_dict()
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_module_keeps_the_confident_and_the_best_matches(images: tuple[Tensor, Tensor]) -> None:
    (everything,) = MatcherModule(**SETTINGS)(images[0][None], images[1][None])
    judged = replace(everything, confidence=everything.scores / everything.scores.max())
    module = MatcherModule(max_num_matches=20, min_confidence=0.9, **SETTINGS)
    assert len(module._selected(everything)) == 20  # without a confidence, nothing is left out for it
    assert 0 < len(module._selected(judged)) <= 20 and module._selected(judged).certainty.min() >= 0.9


def test_kornias_dictionary_has_the_matches_of_all_pairs_inside_the_masks(images: tuple[Tensor, Tensor]) -> None:
    matcher = DeepMatching(**SETTINGS)
    batch = {"image0": torch.stack(images), "image1": torch.stack(images[::-1])}
    found = matcher(batch)
    expected = DeepMatcher.from_pretrained(**SETTINGS).match(*images)
    first = found["batch_indexes"] == 0
    assert torch.equal(found["keypoints0"][first], expected.keypoints0)
    assert torch.equal(found["confidence"][first], expected.certainty)
    assert set(found["batch_indexes"].tolist()) == {0, 1}
    mask = torch.zeros(2, *images[0].shape[1:], dtype=torch.bool)
    mask[0, :, 40:] = mask[1] = True
    for side in (0, 1):
        masked, own = matcher({**batch, f"mask{side}": mask}), {f"mask{side}": mask[0]}
        alone = DeepMatcher.from_pretrained(**SETTINGS).match(*images, **own)
        inside = masked["batch_indexes"] == 0
        assert torch.equal(masked["keypoints1"][inside], alone.keypoints1) and 0 < inside.sum() < first.sum()
        assert masked[f"keypoints{side}"][inside][:, 0].min() >= 40
        assert torch.equal(masked["keypoints1"][~inside], found["keypoints1"][~first])


def test_batches_without_images_have_no_matches_and_those_of_two_sizes_are_refused(
    images: tuple[Tensor, Tensor],
) -> None:
    matcher, batch = DeepMatching(**SETTINGS), torch.stack(images)
    assert [len(array) for array in matcher({"image0": batch[:0], "image1": batch[:0]}).values()] == [0] * 4
    for wrong in ({"image1": batch[:1]}, {"mask0": batch[:1, 0]}):
        with pytest.raises(DeepMatchingError, match=r"\[2, .*1"):
            matcher({"image0": batch, "image1": batch, **wrong})


def test_another_precision_of_the_module_changes_nothing(images: tuple[Tensor, Tensor]) -> None:
    matcher = DeepMatching(**{**SETTINGS, "model": "compact"})
    data = {f"image{n}": image[None].half() for n, image in enumerate(images)}
    expected = matcher(data)
    for change in (matcher.half, matcher.double):
        found = change()(data)
        assert all(torch.equal(found[name], expected[name]) for name in expected) and len(expected["confidence"])


def test_kornias_own_matcher_gives_the_same_keys_and_types(images: tuple[Tensor, Tensor]) -> None:
    feature = pytest.importorskip("kornia.feature")
    grey = {name: image.mean(0)[None, None] for name, image in zip(("image0", "image1"), images, strict=True)}
    with torch.no_grad():
        theirs = feature.LoFTR(None).eval()(grey)
    ours = DeepMatching(**SETTINGS)(grey)
    assert {name: (array.ndim, array.dtype) for name, array in theirs.items()} == {
        name: (array.ndim, array.dtype) for name, array in ours.items()
    }


def test_vismatch_runs_it_and_finds_the_shift(images: tuple[Tensor, Tensor], load: Load) -> None:
    found = load("vismatch").DeepMatchingMatcher(**SETTINGS, max_num_keypoints=50, ransac_reproj_thresh=2)(*images)
    assert 20 < found["num_inliers"] <= len(found["matched_kpts0"]) == len(found["matched_confidences"]) == 50
    np.testing.assert_allclose(found["H"] / found["H"][2, 2], [[1, 0, 6], [0, 1, -4], [0, 0, 1]], atol=0.5)


def test_ptlflow_runs_it_and_gets_the_flow_of_the_matcher(images: tuple[Tensor, Tensor], load: Load) -> None:
    kind = load("ptlflow").deepmatching
    assert {"radius", "levels", "max_size"} <= set(inspect.signature(kind).parameters)  # what its commands can set
    found = kind(**SETTINGS)({"images": torch.stack(images)[None].flip(2)})  # BGR
    expected = DeepMatcher.from_pretrained(**SETTINGS).flow(*images)
    assert found["flows"].shape == (1, 1, 2, *images[0].shape[1:])
    np.testing.assert_allclose(found["flows"][0, 0].permute(1, 2, 0).numpy(), expected.flow, atol=1e-4)


def test_the_hloc_plug_in_loads_zlib_before_hloc() -> None:
    """Hloc imports pycolmap, which brings a zlib of its own: Python's, loaded after it, ends the process."""
    source = Path(sys.modules["deepmatching.plugins"].__file__ or "").with_name("hloc.py").read_text(encoding="utf-8")
    imported = [node.names[0].name for node in ast.parse(source).body if isinstance(node, ast.Import)]
    assert imported[0] == "zlib"


@pytest.mark.parametrize("library", ["hloc", "gluefactory"])
def test_a_library_finds_its_class_and_gets_matches(images: tuple[Tensor, Tensor], load: Load, library: str) -> None:
    adapter = load(library)
    name = f"hloc.matchers.{adapter.CONF['model']['name']}" if library == "hloc" else adapter.__name__
    classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
    ((_, kind),) = [found for found in classes if found[1].__module__ == name]  # as both libraries look for it
    model = kind({"model": "hog", "settings": {"radius": 16}, "max_num_matches": 30}).eval()
    first, second = (image[None] for image in images)
    views = {"image0": first, "image1": second, "view0": {"image": first}, "view1": {"image": second}}
    found = {name: array.squeeze(0) for name, array in model(views).items()}
    scores = "scores" if library == "hloc" else "matching_scores0"
    assert found["keypoints0"].shape == found["keypoints1"].shape == (30, 2) and found[scores].shape == (30,)
    shift = (found["keypoints1"] - found["keypoints0"]).median(dim=0).values
    torch.testing.assert_close(shift, torch.tensor([6.0, -4.0]), atol=1.0, rtol=0)
    start = DeepMatcher.from_pretrained("hog", radius=16, device="cpu").match(*images).best(30).keypoints0
    torch.testing.assert_close(found["keypoints0"], start + (0.5 if library == "gluefactory" else 0.0))  # corners
