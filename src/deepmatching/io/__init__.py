"""Files and images: everything that is read from or written to a disk."""
