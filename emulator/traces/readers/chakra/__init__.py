"""Chakra execution traces: the file format, and the graph it contains."""
