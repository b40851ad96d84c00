"""A P4 switch: loads the BMv2 JSON that p4c writes, and forwards packets as simple_switch does.

`loader` turns the JSON into the typed program of `ir`; `state` holds all that a control plane can see or change;
`interpreter` is the reference, `engine` the fast path; `switch` moves packets through either.
"""
