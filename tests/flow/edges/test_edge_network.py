from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import EdgeNetwork, load_edge_network, save_edge_network


@pytest.fixture(scope="module")
def trained() -> EdgeNetwork:
    """Return a network whose batch normalisation has seen pictures, so that folding changes the convolutions."""
    torch.manual_seed(0)
    network = EdgeNetwork(normalise=True).train()
    for _ in range(3):
        network(torch.rand(2, 3, 48, 48))
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias, std=0.2)
    return network.eval()


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 50), columns=st.integers(1, 50))
def test_logits_have_the_size_of_the_image(rows: int, columns: int) -> None:
    network = EdgeNetwork(widths=(4, 4, 4, 4), depths=(1, 1, 1, 1)).eval()
    assert network(torch.rand(2, 3, rows, columns)).shape == (2, 1, rows, columns)


def test_folding_changes_nothing(trained: EdgeNetwork) -> None:
    image = torch.rand(1, 3, 50, 70)
    folded = trained.folded()
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in folded.modules())
    torch.testing.assert_close(folded(image), trained(image), atol=1e-4, rtol=1e-4)
    assert set(folded.state_dict()) == set(EdgeNetwork().state_dict())


@pytest.mark.parametrize(("rows", "columns"), [(300, 90), (129, 40), (16, 16), (263, 50)])
def test_strips_of_rows_give_the_same_logits(trained: EdgeNetwork, rows: int, columns: int) -> None:
    network = trained.folded()
    image = torch.rand(2, 3, rows, columns, generator=torch.Generator().manual_seed(rows))
    whole = network(image).detach()  # gradients need all of it
    with torch.inference_mode():
        torch.testing.assert_close(network(image), whole, rtol=1e-4, atol=1e-5)


def test_every_scale_has_logits_in_training_only(trained: EdgeNetwork) -> None:
    image = torch.rand(1, 3, 40, 56)
    assert [tuple(logits.shape) for logits in trained.scales(image)] == [(1, 1, 40, 56)]
    network = EdgeNetwork(normalise=True).train()
    assert [tuple(logits.shape) for logits in network.scales(image.expand(2, -1, -1, -1))] == [(2, 1, 40, 56)] * 4


def test_moving_the_image_by_its_coarsest_cell_moves_the_logits() -> None:
    # Shallow, so that the border does not reach the middle.
    network = EdgeNetwork(widths=(8, 8, 8, 8), depths=(0, 0, 0, 1)).eval()
    image = torch.rand(1, 3, 304, 304)
    whole, moved = network(image), network(image[..., 16:, 16:])
    torch.testing.assert_close(whole[..., 144:160, 144:160], moved[..., 128:144, 128:144], atol=1e-5, rtol=1e-4)


def test_the_work_on_a_sintel_frame_stays_below_ten_gflop() -> None:
    network = EdgeNetwork().eval()
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network.to("meta")(torch.empty(1, 3, 436, 1024))
    assert counter.get_total_flops() < 10e9


def test_every_weight_gets_a_gradient() -> None:
    network = EdgeNetwork(normalise=True).train()
    sum(logits.square().mean() for logits in network.scales(torch.rand(2, 3, 64, 64))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_a_saved_network_gives_the_same_edges_and_is_small(tmp_path: Path) -> None:
    network, path = EdgeNetwork(widths=(24, 32, 48), depths=(1, 0, 2)).eval(), tmp_path / "edges.safetensors"
    save_edge_network(network, path, note="a test")
    assert path.stat().st_size < 1_000_000
    again = load_edge_network(path)
    assert again.widths == network.widths and again.depths == network.depths
    image = torch.rand(1, 3, 40, 40)
    torch.testing.assert_close(again(image).sigmoid(), network(image).sigmoid(), atol=0.01, rtol=0)
    assert not again.training and all(p.dtype == torch.float32 and not p.requires_grad for p in again.parameters())


def test_files_that_are_not_edge_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("not a model")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", {"format": "other"})
    for name, says in (("missing", "no edge model"), ("text", "not a readable"), ("other", "not an edge model")):
        with pytest.raises(DeepMatchingError, match=says):
            load_edge_network(tmp_path / f"{name}.safetensors")
    huge = ('{"widths": [1000000000, 4], "depths": [1, 1]}', '{"widths": [4, 4], "depths": [1, 1000000000]}')
    odd = ('{"widths": [0, 4], "depths": [1, 1]}', '{"widths": "ab", "depths": [1, 1]}', "[" * 100_000, "null", "[]")
    for architecture in ('{"widths": [4, 4], "depths": [1, 1]}', '{"colour": 1}', "[", "{}", *huge, *odd):
        metadata = {"format": "deepmatching-edges", "settings": architecture}
        save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", metadata)
        with pytest.raises(DeepMatchingError, match="another architecture"):
            load_edge_network(tmp_path / "other.safetensors")


def test_a_network_with_numbers_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    network = EdgeNetwork(widths=(2, 2), depths=(1, 1)).requires_grad_(False)
    network.head.bias[0] = torch.nan
    save_edge_network(network, tmp_path / "e.safetensors")
    with pytest.raises(DeepMatchingError, match=r"NaN or infinite numbers in head\.bias"):
        load_edge_network(tmp_path / "e.safetensors")
