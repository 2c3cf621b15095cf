"""The learned descriptors, and where their weights come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

from deepmatching.descriptors import VGG, Compact
from deepmatching.descriptors.pretrained import load_vgg
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry import Geometry
from deepmatching.models import build_network, load_network, save_network


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 6), channels=st.sampled_from([1, 3]))
def test_patches_have_unit_norm_at_every_size(rows: int, columns: int, channels: int) -> None:
    torch.manual_seed(0)
    image = torch.rand(2, channels, 8 * rows, 8 * columns)
    with torch.no_grad():
        vectors, cells = Compact()(image), VGG()(image)
    assert vectors.shape == (2, 64, 4 * rows + 1, 4 * columns + 1)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2, 4 * rows + 1, 4 * columns + 1))
    assert cells.shape == (2, 128, 4 * rows, 4 * columns)
    torch.testing.assert_close(cells.norm(dim=1), torch.full((2, 4 * rows, 4 * columns), 0.25))


@pytest.mark.parametrize("name", ["vgg", "compact"])
def test_gradients_reach_the_pixels(name: str) -> None:
    torch.manual_seed(0)
    network = build_network(name, radius=8, levels=1).double()
    images = torch.rand(2, 1, 3, 16, 16, dtype=torch.float64, requires_grad=True)

    def total(pair: torch.Tensor) -> torch.Tensor:
        return network(pair[0], pair[1]).S[1].sum()

    assert torch.autograd.gradcheck(total, (images,), fast_mode=True)


def test_compact_keeps_its_promise_of_40_gflop() -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Compact()(torch.rand(1, 3, 432, 1024))
    geometry = Geometry.for_downscale((436, 1024), (436, 1024), 1, 80)
    correlating = 2 * geometry.cells(0) * Compact().channels
    assert 2 * counter.get_total_flops() + correlating < 40e9


@pytest.mark.parametrize("descriptor", [VGG, Compact])
def test_other_cell_sizes_are_refused(descriptor: type) -> None:
    with pytest.raises(DeepMatchingError, match="downscale must be 1"):
        descriptor(downscale=2)


def published(prefix: str = "{layer}") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {}
    for number, (name, tensor) in enumerate(VGG().state_dict().items()):
        layer, kind = name.split(".")
        index = {"conv1_1": 0, "conv1_2": 2, "conv2_1": 5, "conv2_2": 7}[layer]
        tensors[f"{prefix.format(layer=layer, index=index)}.{kind}"] = (torch.randn_like(tensor) + number).contiguous()
    return tensors


def test_published_weights_load_from_every_kind_of_file(tmp_path: Path) -> None:
    tensors = published()
    np.savez(tmp_path / "a.npz", **{name: t.numpy() for name, t in tensors.items()})
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save(published("features.{index}"), tmp_path / "a.pth")
    for name in ("a.npz", "a.safetensors", "a.pth"):
        descriptor = VGG()
        load_vgg(descriptor, tmp_path / name)
        for key, tensor in descriptor.state_dict().items():
            assert torch.equal(tensor, tensors[key]), name


def test_weights_for_torchvisions_normalisation_give_the_same_features(tmp_path: Path) -> None:
    theirs = published("features.{index}")
    torch.save(theirs, tmp_path / "vgg16-397923af.pth")
    descriptor = VGG()
    load_vgg(descriptor, tmp_path / "vgg16-397923af.pth")
    image = torch.rand(1, 3, 16, 16)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (image - mean[:, None, None]) / std[:, None, None]
    expected = torch.nn.functional.conv2d(normal, theirs["features.0.weight"], theirs["features.0.bias"])
    mine = descriptor.conv1_1(image * 255 - descriptor.mean)[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3)


def test_bad_weights_are_refused_with_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    np.savez(tmp_path / "shape.npz", **{n: np.zeros(3) for n in published()})
    (tmp_path / "broken.pth").write_bytes(b"not weights")
    (tmp_path / "broken.npz").write_bytes(b"not weights")
    (tmp_path / "a.txt").write_text("")
    for name, message in (
        ("empty.npz", "has no conv1_1.weight"),
        ("shape.npz", "instead of the conv1_1.weight"),
        ("broken.pth", "cannot be read"),
        ("broken.npz", "cannot be read"),
        ("a.txt", "not a kind of file"),
        ("missing.npz", "There is no file"),
    ):
        with pytest.raises(DeepMatchingError, match=message):
            load_vgg(VGG(), tmp_path / name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_file_gives_the_same_network(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = build_network("compact", sharpness=7.0, widths=(8, 8, 8), layers=(1, 2, 1), dimensions=16)
    network.exponents.data[1] = 1.7
    save_network(network, tmp_path / "m.safetensors", dtype, card="for a test")
    again = load_network(tmp_path / "m.safetensors")
    assert again.sharpness is not None and float(again.sharpness) == 7
    assert torch.equal(again.exponents, network.exponents)
    for name, tensor in network.state_dict().items():
        assert again.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(again.state_dict()[name], tensor.to(dtype).float(), rtol=1e-3, atol=1e-4)


def test_exponents_stay_positive() -> None:
    network = build_network("hog", sharpness=5.0)
    network.exponents.data.fill_(-3)
    assert network.sharpness is not None
    network.sharpness.data.fill_(-3)
    network.keep_positive()
    assert (network.exponents > 0).all() and network.sharpness > 0
