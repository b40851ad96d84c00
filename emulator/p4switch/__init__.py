"""A P4 switch: loads the BMv2 JSON that p4c writes, and forwards packets as simple_switch does.

`program` has the loader, which turns the JSON into the typed program of `ir`. `state` holds all that a control plane
can see or change; `snapshot` saves it. `packet_path` is what a packet passes from port to port: begin reading there.
`interpreter` is the reference engine under it, `engine` the compiled one; `switch` moves frames through an engine.
`device` adds ports and control interfaces (`thrift`, `p4runtime`), `process` is simple_switch's command line, and `stf`
runs p4c's tests.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
