"""Ports of the switch: input and output of frames.

`port` is the interface of a set of ports; `files` reads and writes pcap files (`pcap`) or named pipes, `live` serves
network interfaces and UDP sockets with the kernels of switchml/net, which `interpreted` runs until they are compiled.
"""
