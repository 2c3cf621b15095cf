"""Networks whose weights come from a file."""

import torch
from torch import nn

from deepmatching.io.weights import NoInitialValues


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
        nn.init.kaiming_normal_(self.first.weight)
        nn.init.normal_(tensor=self.second.weight)
        self.scale = nn.Parameter(torch.full((2,), 3.0))


def test_a_network_without_initial_values_has_its_shapes_and_takes_weights() -> None:
    expected = _Network()
    before = torch.get_rng_state()
    with NoInitialValues():
        with torch.device("meta"):
            shapes = {name: tensor.shape for name, tensor in _Network().state_dict().items()}
        network = _Network()
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes == {name: tensor.shape for name, tensor in expected.state_dict().items()}
    assert network.scale.tolist() == [3, 3]  # what is not drawn is as usual
    network.load_state_dict(expected.state_dict())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name])


def test_after_it_networks_are_random_again() -> None:
    with NoInitialValues():
        pass
    torch.manual_seed(0)
    assert _Network().first.weight.std() > 0.1
