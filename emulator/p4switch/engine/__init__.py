"""The compiled engine: an IR program is lowered to rows of 32-bit words, which one numba kernel, compiled once for all
programs, interprets.

`layout` places a packet's headers in memory; `lower` generates the code, with `parser`, `pipelines`, `actions`,
`fields`, `expressions`, `calculations` and `reroll`; `vm/` runs it; `lookup` flattens table entries. `kernels` compiles
the packet path over the operations in `frames` and `queues`, which work on `memory` and `plan`; `pacing` handles
packets that wait in queues. `engine.CompiledEngine` combines all of it in one method, `process`."""
