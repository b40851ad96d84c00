"""p4c's STF tests, run on the switch in process."""
