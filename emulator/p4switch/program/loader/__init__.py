"""Loads BMv2 JSON."""
