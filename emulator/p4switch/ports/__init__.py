"""How frames reach the switch and leave it.

`port` is the interface of a set of ports; `files` reads and writes pcap files (`pcap`) or named pipes, `live` serves
network interfaces and UDP sockets by the kernels of switchml/net, which `interpreted` runs until they are compiled.
"""
