"""Synthetic training pairs in the spirit of Flying Chairs: photographs, cut-outs and known motions."""

from deepmatching.data.synthesis.generator import Synthesizer
from deepmatching.data.synthesis.photos import Photos
from deepmatching.data.synthesis.settings import PRESETS, SynthesisSettings

__all__ = ["PRESETS", "Photos", "SynthesisSettings", "Synthesizer"]
