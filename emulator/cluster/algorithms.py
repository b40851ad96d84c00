"""Names of all-reduce algorithms and hierarchies, as used in options, job files and environment variables. Their costs
are in `collectives.py`."""

ALGORITHMS = {
    "auto": "the faster of ring and tree",
    "ring": "along all ranks in turn",
    "tree": "two binary trees over nodes",
    "nvls": "added up by the switches inside nodes (NVLink SHARP), and trees over nodes",
    "halving-doubling": "recursive halving, then doubling",
    "hierarchical": "a ring inside nodes first, then rings between them",
    "ps": "one parameter server",
    "switchml": "added up by switches",
}
"""All-reduce algorithms and their descriptions."""
HIERARCHIES = {
    "auto": "as the algorithm goes by itself: node for hierarchical and switchml, none for the others",
    "node": "the ranks of a node reduce among themselves first, and the node speaks to the network",
    "none": "every rank sends for itself",
}
"""Which ranks exchange data between nodes in an all-reduce."""
NODE_FIRST = ("hierarchical", "switchml")
"""Algorithms for which hierarchy "auto" means "node"."""
ALGORITHMS_HELP = f"How all-reduces go: {', '.join(ALGORITHMS)}."
HIERARCHY_HELP = "Who speaks to the network in all-reduces: node (its ranks reduce inside first), none (every rank)."
