"""Subcommands of `switchml` that need the emulator, one a file."""
