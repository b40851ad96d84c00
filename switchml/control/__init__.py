"""The control plane: the ranks of each job, its slots, and the liveness of all ranks.

    membership.py   requests of a rank and events that it gets, as plain data
    jobs.py         the registry of v2 jobs, a state machine without sockets or a clock
    allocation.py   resources of a job: slots, window, tag
    sessions.py     the registry of v1 sessions
    dataplane.py    the interface of data planes, which sum packets
    p4/dataplane.py a single P4 switch; p4/tree.py: a tree of them; p4/base.py: their common part
    service.py      gRPC for v2 (v2.proto); v1/service.py for v1 (v1.proto)
    quotas.py       limits per client; delays after wrong secrets
    secret.py       a job's secret, from the environment or a file
    channel.py      common settings of both ends of a connection; connections.py: identity of the peer, and how it ended
    rpc.py          gRPC services from descriptors; messages.py: v2.proto's messages as plain data
    status.py       samples and rates; report.py, wording.py and metrics.py: the same for people and Prometheus
    events.py       the live stream (ZeroMQ)
    server.py       `Controller`: all of this around a data plane
    client.py       the agent's end: `join`, `Session`, `status`

Importing this package loads none of them: server.py and client.py import grpc, which takes a while.
"""
