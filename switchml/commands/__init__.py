"""The subcommands of `switchml`, one file each; `switchml/__main__.py` names them and imports one when it is called."""
