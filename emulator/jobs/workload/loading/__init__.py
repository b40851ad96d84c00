"""Data loading of a job: its cost model, caches, and SOLAR's plan."""
