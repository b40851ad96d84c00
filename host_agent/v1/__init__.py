"""Agents that speak protocol v1, to p4app-switchML's controller and switch or to our own (docs/p4app-switchml.md)."""
