"""How packets move, for agents, aggregators, a switch's ports and emulated links alike. Kernels over plain arrays fill
and take lists of packets (address, length, sender), so that no Python object is made for a packet.

`udp` is batches of datagrams, `packet_io` and `packet_ring` frames through a network interface, `frames` those that an
agent makes itself, `shm` packets in shared memory, `tunnel` over ZeroMQ; `impair` loses, delays and doubles packets on
purpose. All of them rest on `sockets` (how they are opened), `messages` (recvmmsg, sendmmsg), `trains` (GSO, GRO),
`checksum` and `libc` (system calls from kernels).
"""
