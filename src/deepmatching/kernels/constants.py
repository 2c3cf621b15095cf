"""Numbers that a definition and its kernels share."""

NO_CHOICE = 255  #: recorded where no candidate exists, in switches and in what backward keeps

CHUNK_BYTES = 2**28  #: on a GPU, S_0 is held in pieces of about this size between correlation and max pooling
POINT_TILE = 8  #: on a GPU, the side of the square tiles of reference points that correlation takes
VECTOR_BLOCK = (4, 32)  #: on a GPU, rows and columns of the blocks of target positions that correlation takes
PATCH_BLOCK = (8, 16)  #: the same for patches of several cells: fewer products, but shorter runs to write

SUBPIXEL_REACH = 2  #: cells on each side of a match that say where between the cells it lies

SIMILARITY_PARTS = 16  #: parts that the similarity of a one-vector descriptor is split into, for the confidence
FINE_SCALE = 4.0  #: scale of squashed differences between displacements, in pixels
COARSE_SCALE = 64.0  #: scale of squashed displacements and distances to borders, in pixels
NO_SCORE = -0.1  #: stands for −∞ in scores that the confidence network sees: a little below any real one

DISTANCE_TOLERANCE = 1e-4  #: geodesic distances are final when no pixel's falls by more than this

#: The ridge of the wider affine models: with dozens of neighbours it counts nothing, with two or three it keeps the
#: models calm.
WIDE_RIDGE = 1.0

#: Weight of a match in its own affine model. The original gives a match 0.96 of its weight and 0.01 to each of four
#: points around it. Those count as the ridge, and as (0.96² + 4 · 0.01²)^½ of the match itself.
OWN_WEIGHT = (0.96**2 + 4 * 0.01**2) ** 0.5

NULL_TINY = 1e-12  #: added to the diagonal of a matrix before it is inverted, relative to its trace
NULL_SQUARINGS = 4  #: of that inverse: M⁻¹⁶ is nearly the product of its first eigenvector with itself

ZETA = 0.1  #: ζ of the refinement's energy, see ``deepmatching.flow.refinement``
EPSILON = 0.001  #: ε of the refinement's energy

WHITE_XYZ = (0.950456, 1.0, 1.088754)  #: XYZ of white
#: The rows of the matrix from linear RGB to XYZ.
RGB_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
LAB_REACH = 3  #: where the Gaussian of the colours of saliency (σ = 0.8) is cut off, in pixels
TENSOR_REACH = 4  #: where the Gaussian of the tensor of saliency (σ = 1) is cut off, in pixels
