"""simple_switch_grpc's control interface: a P4Runtime server, so that p4runtime-shell, Finsy or any other P4Runtime
controller drives our switch. Sections named in docstrings are those of the P4Runtime specification, version 1.

`server` has the gRPC service, `controllers` the arbitration among controllers, `configs` the running program, and
`pipeline` binds a program's P4Info to the switch's state. Below that there is one module for each sort of entity
(`entities` lists them), and conversions: `fields` and `matches`.

Needs the package `p4runtime` (pip install 'switchml[p4]'); nothing else of the switch does.
"""
