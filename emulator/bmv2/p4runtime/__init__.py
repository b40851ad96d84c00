"""simple_switch_grpc's control interface, P4Runtime 1.x over gRPC; references below are to sections of its specification.

`protos` has the messages, `p4info` looks objects up in a P4Info, `values` converts numbers; `tables`, `profiles`, `arrays`
and `replication` write and read entities; `streams` arbitrates between controllers; `server` listens. Needs the package
p4runtime (extra `p4`).
"""
