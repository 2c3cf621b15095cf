"""The learned descriptors, and the sources of their weights."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.models import build_network, load_network, save_network
from deepmatching.network.convolutions import band_rows
from deepmatching.network.descriptors import VGG, Compact
from deepmatching.network.descriptors.compact import grow
from deepmatching.network.descriptors.pretrained import load_vgg
from deepmatching.training import read_config
from deepmatching.training.model import build_model


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 6), channels=st.sampled_from([1, 3]))
def test_patches_have_unit_norm_at_every_size(rows: int, columns: int, channels: int) -> None:
    image = torch.rand(2, channels, 8 * rows, 8 * columns)
    with torch.no_grad():
        vectors, cells = Compact()(image), VGG()(image)
    assert (vectors.shape[1], cells.shape[1]) == (64, 128)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2, 4 * rows + 1, 4 * columns + 1))
    torch.testing.assert_close(cells.norm(dim=1), torch.full((2, 4 * rows, 4 * columns), 0.25))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg", "compact"])
@pytest.mark.parametrize("rows", [200, 264])
def test_bands_of_a_large_image_give_the_descriptors_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """In float64: in float32, the order of the sums in a convolution may depend on the size of the image."""
    descriptor = load_network(name).descriptor.double().eval()
    image = torch.rand(2, 3, rows, 72, dtype=torch.float64)
    with torch.no_grad():
        whole = descriptor(image)
        monkeypatch.setattr("deepmatching.network.convolutions.BAND_BYTES", 2**18)
        assert band_rows(rows, 72, descriptor.working) < rows / 2
        in_bands = descriptor(image)
    torch.testing.assert_close(in_bands, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg", "compact"])
def test_gradients_reach_the_pixels(name: str) -> None:
    network = build_network(name, radius=8, levels=1).double()
    images = torch.rand(2, 1, 3, 16, 16, dtype=torch.float64, requires_grad=True)

    def total(pair: torch.Tensor) -> torch.Tensor:
        return network(pair[0], pair[1]).S[1].sum()

    assert torch.autograd.gradcheck(total, (images,), fast_mode=True)


def test_matching_with_compact_takes_less_than_40_gflop() -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Compact()(torch.rand(1, 3, 432, 1024))
    correlating = 2 * Geometry((436, 1024), (436, 1024)).cells(0) * Compact().channels
    assert 2 * counter.get_total_flops() + correlating < 40e9


@pytest.mark.parametrize("descriptor", [VGG, Compact])
def test_other_cell_sizes_are_refused(descriptor: type) -> None:
    with pytest.raises(DeepMatchingError, match="downscale"):
        descriptor(downscale=2)


@torch.no_grad()
@pytest.mark.slow
def test_every_second_cell_of_the_dense_vgg_is_one_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With γ₀ = 1, the paper's; patches of 8×8 cells have norm 1, as those of 4×4 have, also in bands of rows."""
    coarse, dense = VGG().double(), VGG(downscale=0).double()
    dense.load_state_dict(coarse.state_dict())
    image = torch.rand(1, 3, 96, 16, dtype=torch.float64)
    cells = dense(image)
    assert cells.shape == (1, 128, 96, 16)
    torch.testing.assert_close(2 * cells[:, :, ::2, ::2], coarse(image), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cells.norm(dim=1), torch.full((1, 96, 16), 1 / 8, dtype=torch.float64))
    monkeypatch.setattr("deepmatching.network.convolutions.BAND_BYTES", 2**18)
    torch.testing.assert_close(dense(image), cells, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_vgg_has_the_papers_discretization_by_an_option_and_a_config(tmp_path: Path) -> None:
    matcher = dm.DeepMatcher.from_pretrained("vgg", radius=3, downscale=0, subpixel=False, device="cpu")
    geometry = matcher.network.geometry((40, 48), (40, 48))
    assert (geometry.alpha, geometry.delta, geometry.beta, geometry.gamma, geometry.eta) == (8, 8, 4, 1, 1)
    assert matcher.network.confidence is None  # it knows cells of 2 pixels
    matcher.save(tmp_path / "dense.safetensors")
    assert load_network(tmp_path / "dense.safetensors").descriptor.settings() == {"downscale": 0}
    save_file(published("features.{index}"), tmp_path / "init.safetensors")
    config = read_config("paper", [f"model.init={tmp_path / 'init.safetensors'}", "model.settings.downscale=0"])
    network = build_model(config.model, config.loss).network
    assert (network.descriptor.stride, network.descriptor.patch) == (1, 8)
    image = np.random.default_rng(0).integers(0, 255, (40, 48, 3)).astype(np.uint8)
    found = matcher.match(image, np.roll(image, (-1, 3), axis=(0, 1)))  # odd displacements, that cells of 2 px miss
    assert (found.displacements == torch.tensor([3.0, -1.0])).all(1).float().mean() > 0.8


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
    save_file(published("features.{index}"), tmp_path / "b.safetensors")
    for name in ("a.npz", "a.safetensors", "b.safetensors"):
        for key, tensor in loaded(tmp_path / name).state_dict().items():
            assert torch.equal(tensor, tensors[key]), name


#: The start of conv1_1 as ``vgg16-397923af.pth`` has it, printed to four digits, and as the authors' file has it (RGB).
TORCHVISION = [[-0.5537, 0.1427, 0.5290], [-0.5831, 0.3566, 0.7657], [-0.6902, -0.0480, 0.4841]]
AUTHORS = [[0.48002, 0.40855, -0.06515], [0.31048, 0.05020, -0.40338], [-0.05087, -0.28523, -0.41852]]


def starting_with(kernel: list[list[float]], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    tensors = published("features.{index}")
    tensors["features.0.weight"][0, 0] = torch.tensor(kernel)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def loaded(path: Path) -> VGG:
    descriptor = VGG()
    load_vgg(descriptor, path)
    return descriptor


def check_response(descriptor: VGG, weight: torch.Tensor, bias: torch.Tensor, mean: Any, std: Any) -> None:
    """conv1_1 of the descriptor responds as theirs does to (image − mean)/std, for an image in 0 … 255."""
    image = 255 * torch.rand(1, 3, 16, 16)
    normal = (image - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    expected = torch.nn.functional.conv2d(normal, weight.float(), bias.float())
    mine = descriptor.conv1_1(image - descriptor.mean)[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchvisions_own_weights_are_recognised_by_their_values(tmp_path: Path, dtype: torch.dtype) -> None:
    """Whatever the name of the file. Its images are in [0, 1] and normalised."""
    theirs = starting_with(TORCHVISION, dtype)
    save_file(theirs, tmp_path / "mine.safetensors")
    files = ["mine.safetensors"]
    if dtype == torch.float32:
        np.savez(tmp_path / "mine.npz", **{name: tensor.numpy() for name, tensor in theirs.items()})
        files.append("mine.npz")
    mean, std = (255 * np.array(values, np.float32) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    for name in files:
        check_response(loaded(tmp_path / name), theirs["features.0.weight"], theirs["features.0.bias"], mean, std)


@pytest.mark.parametrize("blue_first", [False, True])
def test_the_authors_weights_are_used_whatever_the_file_and_the_order_of_channels(
    tmp_path: Path, blue_first: bool
) -> None:
    theirs = starting_with(AUTHORS)
    weight, bias = theirs["features.0.weight"], theirs["features.0.bias"]
    weights = {**theirs, "features.0.weight": (weight.flip(1) if blue_first else weight).contiguous()}
    save_file(weights, tmp_path / "vgg16-397923af.safetensors")
    descriptor = loaded(tmp_path / "vgg16-397923af.safetensors")
    assert torch.equal(descriptor.conv1_1.weight, weight) and torch.equal(descriptor.conv1_1.bias, bias)


def test_other_weights_may_state_the_normalisation_of_images(tmp_path: Path) -> None:
    theirs = published()
    mean, std = np.array([120.0, 110.0, 100.0], np.float32), np.array([60.0, 50.0, 40.0], np.float32)
    arrays = {name: tensor.numpy() for name, tensor in theirs.items()}
    np.savez(tmp_path / "said.npz", mean_rgb=mean, std_rgb=std, note=np.array("text"), **arrays)
    check_response(loaded(tmp_path / "said.npz"), theirs["conv1_1.weight"], theirs["conv1_1.bias"], mean, std)
    np.savez(tmp_path / "wrong.npz", mean_rgb=np.float32(120), **arrays)
    with pytest.raises(DeepMatchingError, match="must be 3 numbers each"):
        loaded(tmp_path / "wrong.npz")


def test_the_published_file_has_the_authors_first_kernel(shared: Path) -> None:
    theirs = np.load(shared / "weights" / "vgg16_first4_rgb.npz")
    np.testing.assert_allclose(theirs["conv1_1.weight"][0, 0], AUTHORS, atol=1e-5)
    first = loaded(shared / "weights" / "vgg16_first4_rgb.npz").conv1_1
    np.testing.assert_array_equal(first.weight.detach(), theirs["conv1_1.weight"])
    np.testing.assert_array_equal(first.bias.detach(), theirs["conv1_1.bias"])  # type: ignore[union-attr]


def test_bad_weights_raise_a_clear_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    np.savez(tmp_path / "shape.npz", **{n: np.zeros(3) for n in published()})
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    (tmp_path / "broken.npz").write_bytes(b"not weights")
    (tmp_path / "nothing.npz").write_bytes(b"")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04not weights")
    (tmp_path / "a.txt").write_text("text")
    for name, message in (
        ("empty.npz", "has no conv1_1.weight"),
        ("shape.npz", "instead of the conv1_1.weight"),
        *((name, "is damaged") for name in ("broken.npz", "zip.npz")),
        ("objects.npz", "has no conv1_1.weight"),
        ("nothing.npz", "is empty"),
        ("a.txt", "not a supported file"),
        ("missing.npz", "There is no file"),
    ):
        with pytest.raises(DeepMatchingError, match=message) as raised:
            loaded(tmp_path / name)
        assert str(raised.value).isprintable(), name
        assert not any(advice in str(raised.value) for advice in ("allow_pickle", "trust")), name


class _Bomb:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_pickle_is_not_read(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"bomb{suffix}").write_bytes(pickle.dumps(_Bomb(tmp_path / "exploded")))
    torch.save(published(), tmp_path / f"honest{suffix}")
    for name in ("bomb", "honest"):
        with pytest.raises(DeepMatchingError, match=rf"{name}{suffix} .*'{name}\.safetensors'"):
            loaded(tmp_path / f"{name}{suffix}")
    assert not (tmp_path / "exploded").exists()


def test_what_the_error_advises_converts_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(published(), "vgg16.pth")
    with pytest.raises(DeepMatchingError) as raised:
        loaded(Path("vgg16.pth"))
    advice = re.findall(r"convert it: (.*)\.$", str(raised.value))[0]
    exec(advice, {"torch": torch, "safetensors": safetensors})
    assert torch.equal(loaded(Path("vgg16.safetensors")).conv1_1.weight, published()["conv1_1.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_file_gives_the_same_network(tmp_path: Path, dtype: torch.dtype) -> None:
    network = build_network("compact", sharpness=7.0, widths=(8, 8, 8), layers=(1, 2, 1), dimensions=16)
    network.exponents.data[1] = 1.7
    save_network(network, tmp_path / "m.safetensors", dtype, card="for a test")
    again = load_network(tmp_path / "m.safetensors")
    assert again.sharpness is not None and again.sharpness.item() == 7
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


def test_a_grown_descriptor_gives_the_same_vectors_and_every_weight_can_learn() -> None:
    small = Compact(widths=(6, 8), layers=(2, 1), dimensions=10)
    large = Compact(widths=(7, 11, 9, 5), layers=(2, 1, 2, 1), dimensions=10)
    image = torch.rand(2, 3, 70, 54)  # not a multiple of the coarsest scale
    assert not torch.allclose(small(image), large(image), atol=0.1)
    grow(small, large)
    assert torch.allclose(small(image), large(image), atol=1e-5)
    optimizer = torch.optim.SGD(large.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in large.named_parameters()}
    for _ in range(4):  # new weights learn one after another, from the old features on
        optimizer.zero_grad()
        large(image)[:, :5].sum().backward()
        optimizer.step()
    assert not [name for name, value in large.named_parameters() if torch.equal(value, before[name])]


@pytest.mark.parametrize(
    "settings", [{"dimensions": 9}, {"widths": (5, 9)}, {"layers": (2, 2)}, {"widths": (6,), "layers": (2,)}]
)
def test_a_descriptor_only_grows_by_widths_and_scales(settings: dict[str, object]) -> None:
    shape = {"widths": (6, 8), "layers": (2, 1), "dimensions": 10}
    with pytest.raises(DeepMatchingError, match="only widths and scales can be added"):
        grow(Compact(**shape), Compact(**{**shape, **settings}))  # type: ignore[arg-type]
