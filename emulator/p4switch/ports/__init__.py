"""How frames reach the switch and leave it.

`port` says what a set of ports is; `files` reads and writes pcap files or named pipes, `live` serves interfaces
(`packet_io`) and UDP sockets. `pcap` is the file format.
"""
