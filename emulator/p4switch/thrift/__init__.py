"""simple_switch's control interface over Thrift, for the original simple_switch_CLI and other clients written for it.

`services` and `tables` implement calls; `server` listens. The wire format, the interface description and the client are
in switchml/control/thrift."""
