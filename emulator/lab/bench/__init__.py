"""Measurements for `switchml bench`: all-reduces on this machine compared with Gloo's (allreduce.py, ranks/), the
machine's upper limit (limits.py), and the results as a table, JSON or a plot (report.py).
"""
