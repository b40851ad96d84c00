"""Readers of traces, one file or folder a format; `read.py` tells the format and picks one."""
