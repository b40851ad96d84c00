"""simple_switch_grpc's control interface: a P4Runtime server, through which p4runtime-shell, Finsy or any other
P4Runtime controller can control the switch. Sections cited in docstrings are those of the P4Runtime specification,
version 1.

`server` contains the gRPC service, `controllers` the arbitration among controllers, `configs` the running program, and
`pipeline` binds a program's P4Info to the switch's state. Below that there is one module for each sort of entity
(`entities` lists them), and conversions: `fields` and `matches`.

Needs the package `p4runtime` (pip install 'switchml[p4]'); the rest of the switch does not.
"""
