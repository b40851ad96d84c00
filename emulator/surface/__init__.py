"""What people see of the emulator.

`cli/` has a file for each subcommand: options go in, a table or JSON comes out. `api/` is what `import switchml`
offers of it, `ui/` serves it in a browser, `report/` writes its pages and pictures. Nothing is computed here. Begin
reading with `cli/__init__.py`, the table of subcommands.
"""
