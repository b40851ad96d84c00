"""The subcommands of `switchml bench`."""
