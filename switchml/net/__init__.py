"""Batched datagrams. One small interface, as compiled functions over plain arrays: `receive_batch` fills a list of
packets (address, length, sender), `send_batch` takes one. `udp.py` has it over UDP sockets; `shm.py` keeps them in
shared memory, `tunnel` carries them over ZeroMQ, `impair.py` loses, delays and doubles packets on purpose.
"""
