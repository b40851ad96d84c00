"""Code shared by both ends of a switch's Thrift interface: `protocol` is the wire format, `bmv2.thrift` describes
BMv2's services and `idl` parses it, `client` calls a switch. The server is emulator/p4switch/thrift.

Used instead of thriftpy2 (0.7.1), which has disadvantages for users. A program that imports thriftpy2 and has it parse
bmv2.thrift needs 0.22 s from its start until a switch is programmed with a job of eight ranks, against 0.17 s (medians
of eight alternating runs); programming the job itself takes the same time. Its compiled protocol trusts every length:
eight bytes from a peer reserve 2 GiB. Its Python protocol, whose transport could bound them, needs 0.24 s.
tests/emulator/p4switch/thrift/test_services.py verifies that thriftpy2 parses bmv2.thrift in the same way."""
