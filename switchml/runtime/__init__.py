"""How kernels are compiled and cached (jit.py), and addresses and byte order inside them (memory.py); time slices of
threads (slices.py)."""
