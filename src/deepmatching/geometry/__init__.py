"""Where things lie: the positions of all scores, strips of reference rows, patches, transformations of the plane."""
