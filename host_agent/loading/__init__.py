"""Samples for training, planned before it begins (SOLAR, VLDB 2023): who reads what, when, and what is kept."""
