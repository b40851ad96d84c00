"""Writers of traces in formats of other tools, one per module."""
