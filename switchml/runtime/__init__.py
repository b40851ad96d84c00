"""How kernels are compiled and cached (jit.py), and addresses and byte order inside them (memory.py)."""
