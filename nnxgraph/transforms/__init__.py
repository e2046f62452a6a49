"""The transforms: declarations over one Boundary."""
