"""Learning descriptors and exponents from pairs with known displacements.

>>> from deepmatching.training import read_config, train
>>> train(read_config("quickstart", ["data.train=pairs.json", "out=runs/mine"]), torch.device("cpu"))
"""

from deepmatching.training.config import Config
from deepmatching.training.config_file import read_config, shipped_configs
from deepmatching.training.loop import Outcome, Watcher, train

__all__ = ["Config", "Outcome", "Watcher", "read_config", "shipped_configs", "train"]
