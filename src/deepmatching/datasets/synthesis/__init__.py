"""Synthetic training pairs in the spirit of Flying Chairs: photographs, cut-outs and known motions."""

from deepmatching.datasets.synthesis.generator import Synthesizer
from deepmatching.datasets.synthesis.photos import Photos
from deepmatching.datasets.synthesis.settings import PRESETS, SynthesisSettings

__all__ = ["PRESETS", "Photos", "SynthesisSettings", "Synthesizer"]
