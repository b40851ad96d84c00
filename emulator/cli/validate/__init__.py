"""The subcommands of `switchml validate`, one a file."""
