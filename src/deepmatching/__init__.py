"""Deep Matching that learns."""
