"""What both ends of a switch's Thrift interface share: `protocol` is the wire format, `bmv2.thrift` describes BMv2's
services and `idl` reads it, `client` calls a switch. The server is emulator/p4switch/thrift.

Our own code in place of thriftpy2 (0.7.1), because that is worse for users. A program that imports thriftpy2 and has it
parse bmv2.thrift needs 0.22 s from its start until a switch is programmed with a job of eight ranks, against 0.17 s
(medians of eight runs in turns); programming the job itself takes the same time. Its compiled protocol believes every
length: eight bytes from a peer reserve 2 GiB. Its Python protocol, whose transport could bound them, needs 0.24 s.
tests/emulator/p4switch/thrift/test_services.py holds that thriftpy2 reads bmv2.thrift as we do."""
