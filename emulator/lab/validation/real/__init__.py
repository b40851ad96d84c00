"""`switchml validate real`: training over rate-limited links, compared with the network model."""
