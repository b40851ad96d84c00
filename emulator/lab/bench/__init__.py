"""Measurements for `switchml bench`: all-reduces on this machine beside Gloo's (allreduce.py, ranks/), what the machine
could do at most (limits.py), and the results as a table or JSON (report.py) or a picture (plot.py).
"""
