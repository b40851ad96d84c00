"""Subcommands of `switchml` that need an agent but no emulator, one a file."""
