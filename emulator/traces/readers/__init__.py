"""Readers of traces, one module or package for each format; `read.py` detects the format and selects one."""
