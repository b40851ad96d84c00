"""The control plane: which ranks are in which job, which slots it has, and whether all ranks are alive.

    membership.py   what a rank requests and the events that it gets: plain data
    jobs.py         the registry of v2 jobs, a state machine without sockets or a clock
    allocation.py   what a job gets: slots, window, tag
    sessions.py     the same for v1 sessions
    dataplane.py    the interface of whatever adds the packets up
    p4/dataplane.py one P4 switch as such; p4/tree.py: a tree of them; p4/base.py: what both share
    service.py      gRPC for v2 (v2.proto); v1/service.py for v1 (v1.proto)
    quotas.py       what one client may have; waiting after wrong secrets
    secret.py       a job's secret, from the environment or a file
    channel.py      what both ends of a connection agree on; connections.py: who is there, how one ended
    rpc.py          gRPC services from descriptors; messages.py: v2.proto's messages as plain data
    status.py       samples and rates; report.py, wording.py and metrics.py: the same for people and Prometheus
    events.py       the live stream (ZeroMQ)
    server.py       `Controller`: all of this around a data plane
    client.py       the agent's end: `join`, `Session`, `status`

Importing this package loads none of them: server.py and client.py import grpc, which takes a while.
"""
