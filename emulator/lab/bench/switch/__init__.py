"""Measurements of `switchml bench switch`: engines, start-up, table changes, and frames through a real port."""
