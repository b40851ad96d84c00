"""Traces written in formats of other tools, one a file."""
