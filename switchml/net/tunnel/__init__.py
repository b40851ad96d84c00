"""A tunnel for packets over ZeroMQ (tcp:// or ipc://), for networks that drop UDP. The protocol inside stays as it is.

    server = TunnelProcess(("127.0.0.1", 48864), bind="0.0.0.0", port=50101)     # beside the aggregator
    client = TunnelClient("tcp://10.0.0.254:50101", sock.getsockname())         # beside the agent whose socket that is
    client.address          # what the agent's loop takes for the aggregator
    client.data_address     # what the aggregator takes for the agent

For each client the server has one UDP socket towards the aggregator, the client one on loopback towards its agent. Each
side has one thread that relays whole batches: what one recvmmsg brings becomes one message (docs/protocol.md section
7), and one sendmmsg at the other end; packets are gathered and scattered by compiled code. A tunnel may lose packets
where a queue is full, as a network may, but it never changes their order or their bytes.

The server runs in a process of its own (`TunnelProcess`), since strangers may make libzmq abort; it starts only where
somebody asks for it (`switchml aggregate --tunnel`).
"""

from switchml.net.tunnel.client import TunnelClient, choose_address
from switchml.net.tunnel.process import TunnelProcess
from switchml.net.tunnel.server import TunnelServer

__all__ = ["TunnelClient", "TunnelProcess", "TunnelServer", "choose_address"]
