"""The RPCs of p4app-switchML's controller, for its unchanged hosts."""
