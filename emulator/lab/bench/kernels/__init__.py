"""`switchml bench kernels`: PyTorch's operators timed on this machine's GPU (measure.py), and an accelerator file with
constants fitted to them (fit.py)."""
