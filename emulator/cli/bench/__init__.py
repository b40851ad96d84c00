"""The subcommands of `switchml bench`, one a file."""
