"""p4c's STF tests, run on an in-process switch."""
