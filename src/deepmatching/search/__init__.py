"""Search over rotations and scales, for image pairs related by a large rotation or scale change.

The network matches by descriptors that change when an image turns. A search turns and scales the images first.
Candidates are planes of sparse features (``planes``), and all rotations and scales at a reduced size
(``candidates``). A transformation is fitted to the matches that agree, checked at a larger size, and fitted again
(``verification``). At full size, the second image is seen through each transformation that the pair needs, matched as
usual, and the matches are taken back to the original pixels; doubtful ones are matched again near the planes in which
they lie (``matching``).
"""

from deepmatching.search.automatic import doubt, has_failed, wide
from deepmatching.search.matching import find, match_through, search
from deepmatching.search.transformations import Transformation

__all__ = ["Transformation", "doubt", "find", "has_failed", "match_through", "search", "wide"]
