"""A tunnel for packets over ZeroMQ (tcp:// or ipc://), for networks that drop UDP. The protocol inside is unchanged.

    server = TunnelProcess(("127.0.0.1", 48864), bind="0.0.0.0", port=50101)     # on the aggregator's machine
    client = TunnelClient("tcp://10.0.0.254:50101", sock.getsockname())         # on the machine of the agent's socket
    client.address          # what the agent's loop uses as the aggregator's address
    client.data_address     # what the aggregator sees as the agent's address

The server has one UDP socket towards the aggregator per client, the client one on loopback towards its agent. Each side
has one thread that relays whole batches: the result of one recvmmsg becomes one message (docs/protocol.md section 7),
and one sendmmsg at the other end; packets are gathered and scattered by compiled code. A tunnel may lose packets where
a queue is full, as a network may, but it preserves their order and bytes.

The server runs in a separate process (`TunnelProcess`), since any client can make libzmq abort; it starts only on
request (`switchml aggregate --tunnel`).
"""

from switchml.net.tunnel.client import TunnelClient, choose_address
from switchml.net.tunnel.process import TunnelProcess
from switchml.net.tunnel.server import TunnelServer

__all__ = ["TunnelClient", "TunnelProcess", "TunnelServer", "choose_address"]
