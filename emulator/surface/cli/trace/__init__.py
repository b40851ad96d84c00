"""The subcommands of `switchml trace`, one a file."""
