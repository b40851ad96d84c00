"""simple_switch's control interface over Thrift, so that the original simple_switch_CLI and what was written for it
drive our switch.

`protocol` is the wire format, `idl` reads the description of an interface, `services` holds those of BMv2; `standard`,
`multicast` and `simple_switch` answer their calls; `server` listens, `client` calls. All of it is our own, so that a
switch needs no Thrift package. """
