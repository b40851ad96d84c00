"""A P4 switch: loads the BMv2 JSON that p4c writes, and forwards packets as simple_switch does.

`program` contains the loader, which converts the JSON to the typed program of `ir`. `state` is all state that a control
plane can read or change; `snapshot` saves it. `packet_path` is the path of a packet from port to port: begin reading
there. `interpreter` is the reference engine below it, `engine` the compiled one; `switch` passes frames through an
engine. `device` adds ports and control interfaces (`thrift`, `p4runtime`), `process` is simple_switch's command line,
and `stf` runs p4c's tests.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
