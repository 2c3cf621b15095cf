"""Pictures of matches, flows, score maps and training runs, all of them uint8 RGB (H,W,3).

OpenCV and NumPy make the pixels; matplotlib does layout, text, axes and lines. It takes half a second to import, so
only the functions that draw a figure import it.
"""

from deepmatching.drawing.matches import draw_displacement, draw_match_figure
from deepmatching.drawing.pictures import check_picture_path, flow_to_color, html_picture, to_uint8_rgb, write_image
from deepmatching.drawing.scores import draw_score_maps, points_in
from deepmatching.drawing.warping import view_warp, warp

__all__ = [
    "check_picture_path",
    "draw_displacement",
    "draw_match_figure",
    "draw_score_maps",
    "flow_to_color",
    "html_picture",
    "points_in",
    "to_uint8_rgb",
    "view_warp",
    "warp",
    "write_image",
]
