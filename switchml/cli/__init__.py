"""The subcommands of `switchml`, one file each; `switchml/cli/main.py` names them and imports one when it is called."""
