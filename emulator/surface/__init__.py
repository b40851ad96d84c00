"""User interfaces of the emulator.

`cli/` has a file for each subcommand, from options to a table or JSON. `api/` is the emulator's part of `import
switchml`, `ui/` serves it in a browser, `report/` writes its pages and pictures. Nothing is computed here. Begin
reading with `cli/__init__.py`, the table of subcommands.
"""
