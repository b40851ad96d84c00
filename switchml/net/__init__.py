"""Packet input and output for agents, aggregators, a switch's ports and emulated links. Kernels over plain arrays
process lists of packets (address, length, sender), so that no Python object is created per packet.

`udp` is batches of datagrams, `packet_io` and `packet_ring` frames through a network interface, `frames` those that an
agent builds itself, `shm` packets in shared memory, `tunnel` over ZeroMQ; `impair` loses, delays and duplicates packets
on purpose. They are based on `sockets` (creation), `messages` (recvmmsg, sendmmsg), `trains` (GSO, GRO), `checksum` and
`libc` (system calls from kernels).
"""
