"""The settings of a search, found by trials."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """What a search tries, and what it accepts."""

    # Reduced images, on which all rotations and zooms are tried.

    #: Pixels of a reduced image: the geometric mean of both, so that every zoom costs the same.
    area: int = 10_000
    #: Small images match fast, so their search must be faster, too: they are reduced to this fraction of their pixels,
    area_fraction: float = 1 / 33
    #: but to no fewer than this.
    min_area: int = 6_000
    #: Shortest side of a reduced image, in pixels.
    min_side: int = 48
    #: The frame of an image that is turned by 45° has twice its pixels. This fraction of each side is cut off, and with
    #: it a twenty-fifth of the image (4:3), at its corners.
    border_crop: float = 0.14
    #: Largest difference between the displacements of neighbours that agree, as a multiple of their distance.
    max_difference: float = 0.6
    #: Neighbours of eight with which a match must agree.
    min_neighbours: int = 3
    #: Rotations and zooms whose matches get a confidence: those with the highest agreement.
    num_scored: int = 8

    # Candidates.

    #: Candidates that are looked at, best first.
    max_candidates: int = 6
    #: Least agreement of a candidate.
    min_agreement: float = 0.03
    #: Least agreement once a transformation has been found.
    min_later_agreement: float = 0.04
    #: After this number of candidates that lead nowhere, those with less agreement are not looked at.
    max_failed_candidates: int = 3
    #: A candidate counts if the transformations found so far leave this fraction of its matches unexplained.
    min_unexplained_fraction: float = 0.3
    #: A transformation with less support has not been found.
    min_support_found: float = 0.25

    # Planes.

    #: Pixels of the images whose sparse features are found, as a fraction of those that the images have.
    features_fraction: float = 0.36
    #: Largest number of these pixels.
    max_features_area: int = 240_000
    #: Each view of an image has one feature for this many of these pixels.
    pixels_per_feature: int = 320
    #: Views of an image: how far it is squeezed, and the step in degrees between the directions in which it is.
    views: tuple[tuple[float, float], ...] = ((1, 180), (2, 45), (4, 22.5))
    #: Largest distance to the nearest descriptor, as a multiple of that to the nearest one elsewhere.
    max_ratio: float = 0.85
    #: Features at most this far apart are the same one in the ratio test, in pixels.
    same_feature: float = 6.0
    #: How far off a feature may be that lies in a plane, in pixels of the second image.
    features_within: float = 5.0
    #: Planes that are looked for among the same matches.
    max_planes: int = 2
    #: Least number of matches that lie in a plane.
    min_plane_matches: int = 16

    # Fits.

    #: Matches that an affinity needs.
    min_affine_matches: int = 6
    #: Matches that a homography needs.
    min_homography_matches: int = 24
    #: A homography replaces the affinity if this many times as many matches follow it.
    homography_advantage: float = 1.05
    #: Smallest zoom of a transformation along any direction.
    min_zoom: float = 0.05
    #: Largest zoom of a transformation along any direction.
    max_zoom: float = 10.0

    # Checks of a transformation on images that are larger than the reduced ones.

    #: Their pixels, as a multiple of those of the reduced images.
    checked_area: float = 4.0
    #: The same for a first look at a candidate: most are wrong.
    first_area: float = 1.6
    #: Shortest side of the part that is checked, in pixels.
    min_checked_side: int = 32
    #: Largest displacement that a transformation may leave, in pixels of an image of `radius_area`.
    radius: int = 48
    #: Pixels of the images that `radius` refers to.
    radius_area: int = 40_000
    #: Least support at the first look.
    min_first_support: float = 0.04
    #: Least sum of the matches' confidences at the first look.
    min_first_confidence: float = 2.0
    #: Times that a transformation is checked and fitted to the matches that it gives.
    max_rounds: int = 2
    #: A transformation of this support is checked once: another round would find no more. If one is found from sparse
    #: features, rotations and zooms are not tried.
    high_support: float = 0.9
    #: Another round must explain this many times as much.
    min_growth: float = 1.02
    #: Least support of a transformation.
    min_support: float = 0.15
    #: The same if sparse features lie in its plane.
    min_plane_support: float = 0.08
    #: Least sum of its matches' confidences.
    min_confidence: float = 8.0

    # The choice among transformations.

    #: A transformation is used beside others if it adds this fraction of the first image.
    min_new_area: float = 0.05
    #: It must also add this fraction of its own area.
    min_new_area_of_own: float = 0.25
    #: Transformations that are used for a pair.
    max_transformations: int = 3
    #: Plain matching copes with derivatives that differ from the identity by this much.
    max_plain_tilt: float = 0.15
    #: Plain matching copes with displacements of this fraction of its radius.
    max_plain_displacement: float = 0.6

    # Matching through the transformations at full size.

    #: Parts of the first image start at multiples of this, so that their reference points are those of the whole image.
    part_step: int = 16
    #: The best transformation of a reference point is that of most matches within this many pixels along each axis.
    window: float = 28.0
    #: It leaves the transformation of most confident matches for one that has this many times as much around it.
    min_advantage: float = 1.5
    #: Matches are doubtful if the confidence expects a right one at less than this fraction of the points in view. The
    #: planes in which they lie are then matched again.
    doubtful: float = 0.5
    #: A plane of doubtful matches must hold this many times as many of them as a plane at random: those that end in a
    #: circle of `plane_within`, if matches end anywhere within the radius.
    min_above_chance: float = 50.0
    #: Radii of these matchings in pixels, one after the other; none is larger than that of plain matching.
    near_radii: tuple[int, ...] = (48, 48, 24)
    #: The next matching is near the plane of the matches with a confidence above this.
    min_sure: float = 0.3
    #: Least number of matches that this plane is fitted to.
    min_sure_matches: int = 150
    #: How far off a match may be that lies in a plane, in pixels of the second image.
    plane_within: float = 4.0
    #: What such matches must expect: a right one at this fraction of the points in view.
    min_near_expected: float = 0.02
    #: What lies beyond an image: grey.
    beyond: float = 0.5


SETTINGS = SearchSettings()
