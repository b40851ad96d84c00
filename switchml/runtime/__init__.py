"""Compilation and caching of kernels (jit.py), addresses and byte order inside them (memory.py), and scheduler time
slices of threads (slices.py)."""
