"""Pictures of matches, flows and score maps; all of them uint8 RGB (H,W,3), drawn with OpenCV alone."""

from deepmatching.drawing.colors import flow_to_color
from deepmatching.drawing.matches import draw_displacement, draw_match_figure, draw_matches_lines, draw_matches_overlay
from deepmatching.drawing.pictures import check_picture_path, to_uint8_rgb, write_image
from deepmatching.drawing.scores import draw_score_maps

__all__ = [
    "check_picture_path",
    "draw_displacement",
    "draw_match_figure",
    "draw_matches_lines",
    "draw_matches_overlay",
    "draw_score_maps",
    "flow_to_color",
    "to_uint8_rgb",
    "write_image",
]
