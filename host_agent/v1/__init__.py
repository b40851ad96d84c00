"""Agents for protocol v1, for p4app-switchML's controller and switch or this project's own (docs/p4app-switchml.md)."""
