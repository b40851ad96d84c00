"""The protocol's rules, without sockets and clocks: packets, numbers on the wire, the slots, a worker's window."""
