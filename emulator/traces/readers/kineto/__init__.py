"""Readers for traces of PyTorch's profiler (Kineto) and of its ExecutionTraceObserver."""
