import io
import re
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

from deepmatching.errors import DeepMatchingError, OutOfMemoryError
from deepmatching.models import load_network, save_network
from deepmatching.network.descriptors import HOG, Descriptor
from deepmatching.network.inference import Decoding
from deepmatching.network.memory import require_pyramid
from deepmatching.network.network import Network, Pyramid
from deepmatching.network.operators import correlation
from deepmatching.network.operators.decoding import decode


class Pixels(Descriptor):
    """A signed descriptor for the tests: position vectors (patch 1), not normalised."""

    stride, patch, channels = 2, 1, 4

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(image.mean(dim=1, keepdim=True), (1, 1, 1, 1))
        vectors = torch.nn.functional.unfold(padded, 2, stride=2) - 0.5
        return vectors.unflatten(2, (image.shape[2] // 2 + 1, image.shape[3] // 2 + 1))


@pytest.mark.parametrize(
    ("descriptor", "radius", "levels", "size"),
    [(Pixels, None, 2, (16, 16)), (Pixels, 6, 2, (16, 16)), (Pixels, 8, 2, (16, 16)), (HOG, 6, 1, (8, 16))],
)
def test_gradient_through_the_whole_network(
    descriptor: type[Descriptor], radius: int | None, levels: int, size: tuple[int, int]
) -> None:
    """From S and Q to the pixels and the exponents, by finite differences."""
    network = Network(descriptor(), radius, levels).double()
    images = [torch.rand(1, 1, *size, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def refined(image0: torch.Tensor, image1: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
        pyramid = torch.func.functional_call(network, {"exponents": exponents}, (image0, image1))
        return torch.cat([scores[torch.isfinite(scores)] for scores in (*pyramid.S, *pyramid.Q)])

    exponents = torch.full((8,), 1.4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(refined, (*images, exponents), atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("radius", [None, 10])
def test_a_pyramid_has_all_levels_with_the_geometrys_shapes(radius: int | None) -> None:
    pyramid = Network(HOG(), radius)(torch.rand(2, 3, 40, 70), torch.rand(2, 1, 66, 41))
    assert len(pyramid.S) == len(pyramid.Q) == pyramid.geometry.L + 1 == 4
    for l in range(4):
        assert pyramid.S[l].shape == pyramid.Q[l].shape == (2, *pyramid.geometry.shape(l))
    assert torch.equal(pyramid.Q[3], pyramid.S[3])
    assert pyramid.Q[0].requires_grad


def test_scores_are_at_most_the_number_of_levels() -> None:
    """Identical images: the true match scores 1 at every level."""
    image = torch.rand(1, 3, 64, 64)
    pyramid = Network(HOG(), 16)(image, image)
    assert torch.allclose(pyramid.Q[0][..., 8, 8], torch.tensor(pyramid.geometry.L + 1.0), atol=1e-4)
    assert pyramid.Q[0].max() <= pyramid.geometry.L + 1 + 1e-4


@pytest.mark.parametrize("descriptor", [HOG(), Pixels()])
@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
@pytest.mark.parametrize("radius", [None, 10, 16])
def test_decoding_without_the_volumes_equals_decoding_q0(
    descriptor: Descriptor, reciprocal: str, radius: int | None
) -> None:
    network = Network(descriptor, radius)
    images = torch.rand(2, 3, 48, 40), torch.rand(2, 3, 40, 56)
    pyramid, found = network(*images), network.decode(*images, Decoding(reciprocal))
    expected = decode(pyramid.Q[0].detach(), pyramid.geometry, reciprocal)
    torch.testing.assert_close(found.scores, expected.scores)
    for name in ("points0", "points1", "cells", "verified"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_no_levels_is_plain_correlation() -> None:
    network, images = Network(HOG(), 8, levels=0), torch.rand(2, 1, 3, 24, 24)
    pyramid = network(*images)
    on = torch.isfinite(pyramid.Q[0])
    assert torch.equal(pyramid.Q[0][on], pyramid.S[0][on]) and (pyramid.S[0][~on] == 0).all()
    assert network.decode(*images).verified.any()


@pytest.mark.parametrize(
    ("image0", "image1", "words"),
    [
        (torch.zeros(3, 16, 16), torch.zeros(1, 3, 16, 16), "batch of images"),
        (torch.zeros(1, 2, 16, 16), torch.zeros(1, 3, 16, 16), "1 or 3"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.zeros(1, 3, 16, 16), "floating-point"),
        (torch.zeros(1, 3, 16, 16), torch.zeros(2, 3, 16, 16), "same number"),
        (torch.zeros(0, 3, 16, 16), torch.zeros(0, 3, 16, 16), "empty"),
        (torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16).double(), "one type"),
    ],
)
def test_anything_but_a_batch_of_images_is_refused(image0: torch.Tensor, image1: torch.Tensor, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        Network(HOG())(image0, image1)


class Wrong(Descriptor):
    """Gives what it is told to."""

    stride, patch, channels = 2, 4, 3

    def __init__(self, shape: tuple[int, ...], value: float = 0.5) -> None:
        super().__init__()
        self.shape, self.value = shape, value

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.full((len(image), *self.shape), self.value)


@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 9, 9), (4, 8, 8), (3, 16, 16), (8, 8)])
def test_a_descriptor_that_breaks_its_promised_shape_is_refused(shape: tuple[int, ...]) -> None:
    network, images = Network(Wrong(shape), 8), torch.rand(2, 1, 3, 16, 16)
    words = r"descriptor Wrong gives .* channels=3, stride=2 and patch=4 that must be \(1, 3, 8, 8\)"
    for call in (network, network.decode, lambda image, _: network.describe_image(image, (16, 16))):
        with pytest.raises(DeepMatchingError, match=words):
            call(*images)
    Network(Wrong((3, 8, 8)), 8).decode(*images)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"stride": 14}, "power of two, not 14"),
        ({"stride": 6}, "power of two, not 6"),
        ({"stride": None}, "stride=None"),
        ({"stride": 2.0}, r"stride=2\.0"),
        ({"channels": 0}, "channels=0"),
        ({"patch": 3}, "even number of cells, not 3"),
    ],
)
def test_cells_that_no_grid_has_are_refused(declared: dict[str, object], words: str) -> None:
    wrong = Wrong((3, 8, 8))
    vars(wrong).update(declared)
    with pytest.raises(DeepMatchingError, match=words):
        Network(wrong)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_descriptor_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DeepMatchingError, match="Wrong gives values that are not finite"):
        Network(Wrong((3, 8, 8), value), 8).decode(*torch.rand(2, 1, 3, 16, 16))


def test_volumes_that_would_not_fit_are_refused_before_they_are_made() -> None:
    network, size = Network(HOG(), None), (2160, 3840)
    with pytest.raises(OutOfMemoryError, match="smaller radius"):
        require_pyramid(network, network.geometry(size, size), 1, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "radius"), [("compact", 8), ("hog", None)])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_exported_program_gives_the_same_pyramid(model: str, radius: int | None, gradients: bool) -> None:
    network, images = load_network(model, radius, 1).eval(), tuple(torch.rand(2, 2, 3, 24, 32))
    with torch.set_grad_enabled(gradients):
        program, file = torch.export.export(network, images), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    found = torch.export.load(file).module()(*images)
    with torch.no_grad():
        expected = network(*images)
    assert isinstance(found, Pyramid) and found.geometry == expected.geometry
    torch.testing.assert_close(found.S + found.Q, expected.S + expected.Q, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_sentence_about_switching_the_power_of_level_0_off_is_true(tmp_path: Path) -> None:
    """What docs/architecture.md says, run as it stands there; eq. (2) of the paper has no power. A file keeps it."""
    page = Path(__file__).parents[2] / "docs" / "architecture.md"
    (code,) = re.findall(r"`(with torch\.no_grad\(\): network\.exponents\[0\] = 1)`", page.read_text(encoding="utf-8"))
    network, image = Network(HOG(), radius=8), torch.rand(1, 3, 32, 40, generator=torch.Generator().manual_seed(0))
    with torch.enable_grad():  # as for a user, who would otherwise be told that a leaf cannot change in place
        exec(code, {"torch": torch, "network": network})
    geometry = network.geometry((32, 40), (32, 40))
    cells = network.descriptor(image)
    assert torch.allclose(network(image, image).S[0], correlation(cells, cells, geometry, 4).relu(), atol=1e-6)
    assert network.exponents.tolist()[:2] == [1.0, pytest.approx(1.4)] and network.exponents.requires_grad
    save_network(network, tmp_path / "n.safetensors")
    assert torch.equal(load_network(tmp_path / "n.safetensors").exponents, network.exponents)
