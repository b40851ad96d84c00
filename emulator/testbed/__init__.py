"""Networks of this machine's kernel: namespaces, links, racks, Mininet."""
