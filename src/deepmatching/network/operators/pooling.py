"""Pooling as a component of the network: the paper's, the soft one, and the interface of a user's own."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.operators.max_pooling import max_pooling
from deepmatching.network.operators.soft_pooling import soft_pooling, soft_unpooling
from deepmatching.network.operators.unpooling import unpooling


@runtime_checkable
class PoolingComponent(Protocol):
    """What ``Network(pooling=…)`` takes: how a level is pooled on the way up, and unpooled on the way down.

    Cell k of a pooled map lies at cell 2k + ``geometry.pool_offset(l)`` of the map of level l. If the component is an
    ``nn.Module``, its parameters are those of the network, too.
    """

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Any]:
        """Return S_{l+1/2} from ``scores`` = S_l, and what unpooling needs.

        S_l is (B, H_l, W_l, h_l, w_l), S_{l+1/2} is (B, H_l, W_l, h_{l+1}, w_{l+1}); see ``Geometry.window``. The
        scores must not be overwritten.
        """

    def unpool(self, scores: Tensor, kept: Any, fine: Tensor, geometry: Geometry, l: int) -> Tensor:
        """Unpool ``scores`` = Q_{l+1/2}: return U_l, of the shape of ``fine`` = S_l; −∞ where nothing comes back.

        Args:
            kept: the second result of :meth:`pool`.
        """


@dataclass(frozen=True)
class HardPooling:
    """Max pooling, eq. (3) of the paper, and unpooling to the maxima, eq. (6)."""

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
        """Return S_{l+1/2} and the switches m_l."""
        return max_pooling(scores, geometry.window(l + 1), geometry.pool_offset(l), geometry.pool_reach)

    def unpool(self, scores: Tensor, kept: Tensor, fine: Tensor | None, geometry: Geometry, l: int) -> Tensor:
        """Return U_l from Q_{l+1/2} and the switches m_l."""
        return unpooling(scores, kept, geometry.window(l), geometry.pool_offset(l), geometry.pool_reach)


@dataclass(frozen=True)
class SoftPooling:
    """The soft maximum and its reverse, see :func:`~deepmatching.network.operators.soft_pooling.soft_pooling`.

    Args:
        log_temperatures: log β_l of every level; levels beyond the last share it.
    """

    log_temperatures: Tensor

    def temperature(self, l: int) -> Tensor:
        """Return β_l."""
        return self.log_temperatures[min(l, len(self.log_temperatures) - 1)].exp()

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
        """Return S_{l+1/2} and the maximum of each window."""
        window = geometry.window(l + 1), geometry.pool_offset(l), geometry.pool_reach
        return soft_pooling(scores, self.temperature(l), *window)

    def unpool(self, scores: Tensor, kept: Tensor, fine: Tensor, geometry: Geometry, l: int) -> Tensor:
        """Return U_l from Q_{l+1/2}, the maxima and S_l."""
        return soft_unpooling(scores, fine, kept, self.temperature(l), geometry.pool_offset(l), geometry.pool_reach)


#: The paper's pooling.
HARD = HardPooling()
