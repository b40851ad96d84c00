"""`switchml validate replay`: replays and what-if changes of traced runs, compared with real runs with the same
changes."""
