"""The compiled engine's virtual machine: its loop, and the kernels behind its instructions."""
