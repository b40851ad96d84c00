"""The control plane: who is in which job, what slots it has, and whether everybody is still alive.

    membership.py   what a rank asks for and may be told: plain data
    jobs.py         the registry of v2 jobs, a state machine without sockets or a clock
    allocation.py   what a job gets: slots, window, tag
    sessions.py     the same for v1 sessions
    dataplane.py    what both ask of whatever adds the packets up
    p4/dataplane.py a P4 switch that does; p4/tree.py: a tree of them; p4/base.py: what both have in common
    service.py      gRPC for v2 (v2.proto); v1/service.py for v1 (v1.proto)
    channel.py      what both ends of a connection agree on; connections.py: how one ended
    status.py       samples and rates; report.py, wording.py and metrics.py: the same for people and Prometheus
    events.py       the live stream (ZeroMQ)
    server.py       `Controller`: all of this around a data plane
    client.py       the agent's end: `join`, `Session`, `status`

Importing this package loads none of them: server.py and client.py import grpc, which takes a while.
"""
