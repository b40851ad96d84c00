"""A P4 program as p4c wrote it: the loader, and the typed form that interpreter and engine run."""
