"""Data loading as a part of a job: what it costs, caches, and SOLAR's plan."""
