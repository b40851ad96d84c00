"""Two-level all-reduces: the ranks of one host sum in shared memory, and one of them communicates with the
aggregator."""
