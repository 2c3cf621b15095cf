"""Values that several modules share. This module does not import PyTorch, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Final, Literal

#: How matches are verified; see ``deepmatching.operators.decoding``.
Reciprocal = Literal["bins", "exact", "none"]
RECIPROCAL: Reciprocal = "bins"

#: The paper's own way to verify them (its first footnote).
PAPERS_RECIPROCAL: Reciprocal = "exact"

#: Models that ship with the package, and the default model.
MODELS = ("compact", "vgg", "hog")
MODEL = "compact"

#: Largest displacement along each axis, in pixels.
RADIUS = 80

#: The same for flow. It is larger because a pixel that moves further than the radius has no correct match, and a wrong
#: object costs more than the extra time.
FLOW_RADIUS = 160

#: Beyond any image: a larger radius is a typing error.
LARGEST_RADIUS = 1_000_000

#: The users' word for "no limit on the displacement". Inside the package, no limit is None.
FULL: Final = "full"

#: ν, the exponent of every level before training.
EXPONENT = 1.4

#: How scores are pooled and unpooled; see ``deepmatching.operators.soft_pooling``.
Pooling = Literal["hard", "soft"]

#: β, the temperature of every level of soft pooling before training.
TEMPERATURE = 50.0

#: Preset of the flow settings.
PRESET = "default"

#: Thresholds T of acc@T, in pixels.
THRESHOLDS = (2, 5, 10)

#: What a search tries: so many rotations, evenly spaced, and these zooms of the second image. Of the zooms at odd
#: places, the rotations are turned by half a step: neighbours in zoom then fill the gaps between rotations.
ROTATIONS = 8
SCALES = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)

#: Bounds of what can be searched: the number of rotations, and zooms.
MOST_ROTATIONS, SMALLEST_SCALE, LARGEST_SCALE = 72, 0.1, 10.0

#: Below this agreement of the matches (``Matches.agreement``), commands warn that the result is probably wrong. Pairs
#: that the method cannot match reach 0.20, those with acc@10 above 40 % have at least 0.30; see docs/results.md.
AGREEMENT = 0.25

#: The same for judged matches: the fraction of the reference points that are expected to have a right match. Pairs that
#: the method cannot match reach 0.06, the hardest of Sintel 0.12; pairs with acc@10 above 30 % have at least 0.28.
EXPECTED = 0.1

#: A match is right if it is less than this many pixels off; the confidence is the probability of that.
RIGHT = 3.0

#: Matches that are not verified are given out too if their confidence is at least this.
CONFIDENT = 0.5

#: To propagate matches, every pixel takes the displacement of the most confident match within this many pixels along
#: each axis.
SPREAD = 8

#: Of the losses: σ of g_σ in pixels, the margin of the hinge and the initial β of the cross-entropy.
SIGMA, MARGIN, SCALE = 1.5, 1.0, 10.0

#: The largest image: OpenCV reads no larger one.
MOST_PIXELS = 2**30

#: The largest size of memory that can be given: what 64-bit systems can count.
MOST_BYTES = 2**63 - 1
