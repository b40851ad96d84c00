"""The subcommands of `switchml trace`, one per file."""
