"""A compiled P4 program: the loader, and the typed representation that interpreter and engine run."""
