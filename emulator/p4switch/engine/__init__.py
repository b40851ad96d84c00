"""The compiled engine: an IR program is lowered to rows of 32-bit words, which one numba kernel, compiled once for all
programs, interprets.

`layout` says where a packet's headers lie, `lower*` write the code, `vm*` run it, `lookup` flattens table entries,
`traffic` is simple_switch's packet path around them, and `engine.Engine` puts all of it behind one `process`.
"""
