"""Values that several modules agree on. Free of PyTorch, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Final, Literal

#: How matches are verified; see ``deepmatching.operators.decoding``.
Reciprocal = Literal["bins", "exact", "none"]
RECIPROCAL: Reciprocal = "bins"

#: Models that come with the package, and the one that is used unless another is named.
MODELS = ("compact", "vgg", "hog")
MODEL = "compact"

#: Largest displacement along each axis, in pixels.
RADIUS = 80

#: The same for flow. It is larger, because a pixel that moves further than the radius has no right match, and one
#: wrong object costs more than a little time.
FLOW_RADIUS = 160

#: What users write for "no limit on the displacement". Inside the package, no limit is None.
FULL: Final = "full"

#: ν, the exponent of every level before training.
EXPONENT = 1.4

#: Preset of the flow.
PRESET = "default"

#: acc@T is measured at these thresholds, in pixels.
THRESHOLDS = (2, 5, 10)

#: Every pixel takes the displacement of the most confident match at most this many pixels away along each axis.
SPREAD = 8

#: σ of g_σ in pixels, the hinge's margin and the first β of the cross-entropy.
SIGMA, MARGIN, SCALE = 1.5, 1.0, 10.0
