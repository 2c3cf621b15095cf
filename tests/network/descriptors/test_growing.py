"""A larger descriptor starts as a smaller one."""

import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.network.descriptors import Compact
from deepmatching.network.descriptors.compact import grow


def test_a_grown_descriptor_gives_the_same_vectors_and_every_weight_can_learn() -> None:
    torch.manual_seed(0)
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
