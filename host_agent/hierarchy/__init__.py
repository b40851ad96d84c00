"""All-reduces in two levels: the ranks of one host sum in shared memory, and one of them speaks to the network."""
