"""Readers of traces, one file or folder a format; `read.py` recognizes the format and picks one."""
