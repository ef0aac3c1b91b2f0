"""A traced program entry by entry, as polynomials of the arguments' entries."""
