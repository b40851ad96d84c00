"""`switchml validate real`: training over rate-limited links, beside the network model."""
