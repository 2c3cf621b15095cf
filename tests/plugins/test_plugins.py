"""The matcher inside other libraries, as far as they are installed."""

from __future__ import annotations

import ast
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepmatching.matcher import DeepMatcher
from deepmatching.plugins import MatcherModule, confidence_of
from deepmatching.plugins.kornia import DeepMatching

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 16, "device": "cpu"}


@pytest.fixture
def images(pair: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    first, second = (torch.from_numpy(image).permute(2, 0, 1).float() / 255 for image in pair)
    return first, second


def test_a_module_matches_each_pair_of_a_batch_and_has_the_parameters_of_the_network(
    images: tuple[Tensor, Tensor],
) -> None:
    module = MatcherModule(**SETTINGS).eval()
    found = module(torch.stack(images), torch.stack(images[::-1]))
    expected = DeepMatcher.from_pretrained(**SETTINGS).match(*images)
    assert len(found) == 2 and torch.equal(found[0].keypoints1, expected.keypoints1)
    assert "network.exponents" in module.state_dict()
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_confidence_is_that_of_the_matches_or_else_their_score(images: tuple[Tensor, Tensor]) -> None:
    matches = DeepMatcher.from_pretrained(**SETTINGS).match(*images)
    if getattr(matches, "confidence", None) is None:
        assert confidence_of(matches) is matches.scores
        object.__setattr__(matches, "confidence", matches.scores / 10)
    assert torch.equal(confidence_of(matches), matches.confidence)  # type: ignore[attr-defined]


def test_kornias_dictionary_has_the_matches_of_all_pairs(images: tuple[Tensor, Tensor]) -> None:
    matcher = DeepMatching(**SETTINGS)
    found = matcher({"image0": torch.stack(images), "image1": torch.stack(images[::-1])})
    expected = DeepMatcher.from_pretrained(**SETTINGS).match(*images)
    first = found["batch_indexes"] == 0
    assert torch.equal(found["keypoints0"][first], expected.keypoints0)
    assert torch.equal(found["confidence"][first], confidence_of(expected))
    assert set(found["batch_indexes"].tolist()) == {0, 1}


def test_kornias_own_matcher_gives_the_same_keys_and_types(images: tuple[Tensor, Tensor]) -> None:
    feature = pytest.importorskip("kornia.feature")
    grey = {name: image.mean(0)[None, None] for name, image in zip(("image0", "image1"), images, strict=True)}
    with torch.no_grad():
        theirs = feature.LoFTR(None).eval()(grey)
    ours = DeepMatching(**SETTINGS)(grey)
    assert {name: (array.ndim, array.dtype) for name, array in theirs.items()} == {
        name: (array.ndim, array.dtype) for name, array in ours.items()
    }


def test_vismatch_runs_it_and_finds_the_shift(images: tuple[Tensor, Tensor]) -> None:
    pytest.importorskip("vismatch", exc_type=ImportError)
    from deepmatching.plugins.vismatch import DeepMatchingMatcher

    matcher = DeepMatchingMatcher(**SETTINGS, ransac_reproj_thresh=2)
    found = matcher(*images)
    assert found["num_inliers"] > 20 and len(found["matched_confidences"]) == len(found["matched_kpts0"])
    np.testing.assert_allclose(found["H"] / found["H"][2, 2], [[1, 0, 6], [0, 1, -4], [0, 0, 1]], atol=0.5)


def test_ptlflow_runs_it_and_gets_the_flow_of_the_matcher(images: tuple[Tensor, Tensor]) -> None:
    ptlflow = pytest.importorskip("ptlflow", exc_type=ImportError)
    import deepmatching.plugins.ptlflow  # noqa: F401 - registers the model

    model = ptlflow.get_model_reference("deepmatching")(**SETTINGS)
    bgr = torch.stack(images)[None].flip(2)
    found = model({"images": bgr})
    expected = DeepMatcher.from_pretrained(**SETTINGS).flow(*images)
    assert found["flows"].shape == (1, 1, 2, *images[0].shape[1:])
    np.testing.assert_allclose(found["flows"][0, 0].permute(1, 2, 0).numpy(), expected.flow, atol=1e-4)


class _BaseModel(nn.Module, ABC):
    """hloc's interface as it documents it: a configuration, and two methods for subclasses."""

    default_conf: dict[str, Any]
    required_inputs: list[str]

    def __init__(self, conf: dict[str, Any]) -> None:
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        assert set(self.required_inputs) <= set(data)
        return self._forward(data)

    @abstractmethod
    def _init(self, conf: dict[str, Any]) -> None: ...

    @abstractmethod
    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]: ...


@pytest.fixture
def hloc(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The adapter with hloc itself if it is installed, else with its documented interface."""
    try:
        import hloc.matchers
        import hloc.utils.base_model  # noqa: F401
    except ImportError:
        for name in ("hloc", "hloc.matchers", "hloc.utils", "hloc.utils.base_model"):
            module = ModuleType(name)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules["hloc.utils.base_model"].BaseModel = _BaseModel  # type: ignore[attr-defined]
    import deepmatching.plugins.hloc as adapter

    yield adapter
    for name in ("deepmatching.plugins.hloc", "hloc.matchers.deepmatching"):
        sys.modules.pop(name, None)


def test_the_hloc_plug_in_loads_zlib_before_hloc() -> None:
    """Hloc imports pycolmap, which brings a zlib of its own: Python's, loaded after it, ends the process."""
    source = Path(sys.modules["deepmatching.plugins"].__file__ or "").with_name("hloc.py").read_text(encoding="utf-8")
    imported = [node.names[0].name for node in ast.parse(source).body if isinstance(node, ast.Import)]
    assert imported[0] == "zlib"


def test_hloc_finds_it_by_its_name_and_gets_keypoints_and_scores(
    images: tuple[Tensor, Tensor], hloc: ModuleType
) -> None:
    name = hloc.CONF["model"]["name"]
    module = __import__(f"hloc.matchers.{name}", fromlist=[""])
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    assert len(found) == 1  # hloc's way to find the class
    model = found[0]({"model": "hog", "settings": {"radius": 16}, "max_num_matches": 30}).eval()
    result = model({"image0": images[0][None], "image1": images[1][None]})
    assert {name: tuple(array.shape) for name, array in result.items()} == {
        "keypoints0": (30, 2),
        "keypoints1": (30, 2),
        "scores": (30,),
    }
    shift = (result["keypoints1"] - result["keypoints0"]).median(dim=0).values
    torch.testing.assert_close(shift, torch.tensor([6.0, -4.0]), atol=1.0, rtol=0)
