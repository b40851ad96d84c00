"""simple_switch's control interface over Thrift, so that the original simple_switch_CLI and what was written for it
drive our switch.

`services` and `tables` answer calls; `server` listens. The wire format, the description of the interface and the
client are in switchml/control/thrift."""
