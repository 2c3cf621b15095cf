"""Random numbers that depend on their purpose and on nothing that happened before.

A resumed run therefore continues as if it had never stopped, without saved generators.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def seed_for(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose: the order of an epoch, the crop of a sample, …"""
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator_for(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator with :func:`seed_for`'s seed."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *numbers))
