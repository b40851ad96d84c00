"""The PyTorch backend: process group, rendezvous, works, CUDA and sparse tensors, DDP hooks and settings."""
