"""`switchml ui`: the emulator and the state of an aggregator in a browser."""
