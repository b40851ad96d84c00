"""Optimizes a job: passes over its graph, a search for their best setting, and a settings file. See
docs/optimizer.md."""
