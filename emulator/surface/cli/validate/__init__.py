"""The subcommands of `switchml validate`."""
