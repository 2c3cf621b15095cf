from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import EdgeNetwork, load_edge_network, save_edge_network


def test_a_saved_network_gives_the_same_edges_and_is_small(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = EdgeNetwork().eval()
    save_edge_network(network, tmp_path / "edges.safetensors", note="a test")
    assert (tmp_path / "edges.safetensors").stat().st_size < 1_000_000
    again = load_edge_network(tmp_path / "edges.safetensors")
    image = torch.rand(1, 3, 40, 40)
    torch.testing.assert_close(again(image).sigmoid(), network(image).sigmoid(), atol=0.01, rtol=0)
    assert not again.training and all(p.dtype == torch.float32 and not p.requires_grad for p in again.parameters())


def test_other_widths_survive_a_file(tmp_path: Path) -> None:
    save_edge_network(EdgeNetwork(widths=(4, 4, 8), depths=(1, 0, 1)), tmp_path / "e.safetensors")
    network = load_edge_network(tmp_path / "e.safetensors")
    assert network.widths == (4, 4, 8) and network.depths == (1, 0, 1)


def test_files_that_are_not_edge_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no edge model"):
        load_edge_network(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("not a model")
    with pytest.raises(DeepMatchingError, match="not a readable"):
        load_edge_network(tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", {"format": "other"})
    with pytest.raises(DeepMatchingError, match="not an edge model of deepmatching"):
        load_edge_network(tmp_path / "other.safetensors")
    huge = ('{"widths": [1000000000, 4], "depths": [1, 1]}', '{"widths": [4, 4], "depths": [1, 1000000000]}')
    odd = ('{"widths": [0, 4], "depths": [1, 1]}', '{"widths": "ab", "depths": [1, 1]}', "[" * 100_000, "null", "[]")
    for settings in ('{"widths": [4, 4], "depths": [1, 1]}', '{"colour": 1}', "[", "{}", *huge, *odd):
        metadata = {"format": "deepmatching-edges", "settings": settings}
        save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", metadata)
        with pytest.raises(DeepMatchingError, match="another architecture"):
            load_edge_network(tmp_path / "other.safetensors")


def test_a_network_with_numbers_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    network = EdgeNetwork(widths=(2, 2), depths=(1, 1))
    with torch.no_grad():
        network.head.bias[0] = torch.nan
    save_edge_network(network, tmp_path / "e.safetensors")
    with pytest.raises(DeepMatchingError, match=r"NaN or infinite numbers in head\.bias"):
        load_edge_network(tmp_path / "e.safetensors")
