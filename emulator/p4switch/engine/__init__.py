"""The compiled engine: an IR program is lowered to rows of 32-bit words, which one numba kernel, compiled once for all
programs, interprets.

`layout` places a packet's headers in memory; `lower` writes the code, with `parser`, `pipelines`, `actions`, `fields`,
`expressions`, `calculations` and `reroll`; `vm/` runs it; `lookup` flattens table entries. `kernels` compiles the
packet path over the operations in `frames` and `queues`; `memory` and `plan` are what these work on, `pacing` is for
packets that have to wait. `engine.CompiledEngine` puts all of it behind one `process`."""
