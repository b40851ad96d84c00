"""A compiled P4 program: the loader, and the typed form that interpreter and engine run."""
