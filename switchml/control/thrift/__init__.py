"""What both ends of a switch's Thrift interface need: `protocol` is the wire format, `idl` reads the description of an
interface, `services` holds those of BMv2, `client` calls a switch. All of it is our own, so that neither our switch
nor whoever drives one needs a Thrift package; the server is emulator/p4switch/thrift."""
