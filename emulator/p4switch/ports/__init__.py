"""How frames reach the switch and leave it.

`port` is the interface of a set of ports; `files` reads and writes pcap files or named pipes, `live` serves interfaces
(`packet_io`) and UDP sockets. `pcap` is the file format.
"""
