"""Compressed all-reduces, and the choice of a codec by the state of the network."""
