"""How transfers share links: max-min fair, found by progressive filling (Bertsekas and Gallager, Data Networks,
6.5.2). All transfers grow at one rate until a link is full or a transfer reaches its own limit; what that stops stays
as it is, the others grow on. A change touches only transfers that are connected to it by links, so only those are
computed again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emulator.workload.costs import Fabric
from switchml.jit import kernel


class Sharing(NamedTuple):
    """Who is on which link. A flow has the number of the stream that leads its meeting; its hop k has the number
    flow · width + k in the lists of links."""

    link_bytes_per_s: np.ndarray
    """float64 (links,)."""
    route_start: np.ndarray
    """int64 (routes + 1,)."""
    route_link: np.ndarray
    """int32."""
    route_share: np.ndarray
    """float64: bytes on the link for each byte of the meeting."""
    route: np.ndarray
    """int32 (flows,): the route that a flow is on, −1: not in the fabric."""
    limit: np.ndarray
    """float64 (flows,): the most it could move, bytes/s."""
    rate: np.ndarray
    """float64 (flows,): bytes/s; −1 while it is to be found."""
    head: np.ndarray
    """int32 (links,): first hop on a link, −1: none."""
    after: np.ndarray
    """int32 (hops,)."""
    before: np.ndarray
    """int32 (hops,): the hop before it, −2 − link: it is the first one."""
    room: np.ndarray
    """float64 (links,): what flows that have their rate leave."""
    load: np.ndarray
    """float64 (links,): shares of the flows that have not."""
    count: np.ndarray
    """int32 (links,): how many have not."""
    is_listed: np.ndarray
    """bool (links,)."""
    links: np.ndarray
    """int32 (links,): those to be computed again."""
    flows: np.ndarray
    """int32 (flows,): the same of flows."""
    listed: np.ndarray
    """int64 (2,): how many links, how many flows."""


def empty_sharing(fabric: Fabric, flows: int, longest_route: int) -> Sharing:
    """No flow on any link."""
    links, hops = len(fabric.link_bytes_per_s), flows * longest_route
    return Sharing(
        link_bytes_per_s=np.asarray(fabric.link_bytes_per_s, np.float64),
        route_start=np.asarray(fabric.start, np.int64),
        route_link=np.asarray(fabric.link, np.int32),
        route_share=np.asarray(fabric.share, np.float64),
        route=np.full(flows, -1, np.int32),
        limit=np.zeros(flows),
        rate=np.zeros(flows),
        head=np.full(links, -1, np.int32),
        after=np.zeros(hops, np.int32),
        before=np.zeros(hops, np.int32),
        room=np.zeros(links),
        load=np.zeros(links),
        count=np.zeros(links, np.int32),
        is_listed=np.zeros(links, np.bool_),
        links=np.zeros(links, np.int32),
        flows=np.zeros(flows, np.int32),
        listed=np.zeros(2, np.int64),
    )


@kernel
def enter(sharing, flow, route, limit):
    """Put `flow` on the links of `route`; its rate is 0 until `share_out`."""
    width = len(sharing.after) // len(sharing.route)
    sharing.route[flow] = route
    sharing.limit[flow] = limit
    sharing.rate[flow] = 0.0
    first = sharing.route_start[route]
    for i in range(first, sharing.route_start[route + 1]):
        hop, link = flow * width + i - first, sharing.route_link[i]
        old = sharing.head[link]
        sharing.head[link] = hop
        sharing.after[hop] = old
        sharing.before[hop] = -2 - link
        if old >= 0:
            sharing.before[old] = hop
        _list_link(sharing, link)


@kernel
def leave(sharing, flow):
    """Take `flow` off its links."""
    width = len(sharing.after) // len(sharing.route)
    route = sharing.route[flow]
    first = sharing.route_start[route]
    for i in range(first, sharing.route_start[route + 1]):
        hop = flow * width + i - first
        after, before = sharing.after[hop], sharing.before[hop]
        if before < 0:
            sharing.head[-2 - before] = after
        else:
            sharing.after[before] = after
        if after >= 0:
            sharing.before[after] = before
        _list_link(sharing, sharing.route_link[i])
    sharing.route[flow] = -1


@kernel(inline=True)
def _list_link(sharing, link):
    if not sharing.is_listed[link]:
        sharing.is_listed[link] = True
        sharing.links[sharing.listed[0]] = link
        sharing.listed[0] += 1


@kernel
def collect(sharing):
    """List all links and flows that are connected to the links listed so far; returns how many flows. Their old rates
    still stand."""
    width = max(1, len(sharing.after) // len(sharing.route))
    flows, at = 0, 0
    while at < sharing.listed[0]:
        hop = sharing.head[sharing.links[at]]
        at += 1
        while hop >= 0:
            flow = hop // width
            route = sharing.route[flow]
            for i in range(sharing.route_start[route], sharing.route_start[route + 1]):
                _list_link(sharing, sharing.route_link[i])
            # A flow is listed by its first hop, which is on a listed link and comes up once.
            if hop == flow * width:
                sharing.flows[flows] = flow
                flows += 1
            hop = sharing.after[hop]
    sharing.listed[1] = flows
    return flows


@kernel
def share_out(sharing):
    """Give every listed flow its rate, and clear the lists."""
    links, flows = sharing.listed[0], sharing.listed[1]
    for at in range(links):
        link = sharing.links[at]
        sharing.room[link] = sharing.link_bytes_per_s[link]
        sharing.load[link] = 0.0
        sharing.count[link] = 0
        sharing.is_listed[link] = False
    for at in range(flows):
        flow = sharing.flows[at]
        sharing.rate[flow] = -1.0
        route = sharing.route[flow]
        for i in range(sharing.route_start[route], sharing.route_start[route + 1]):
            sharing.load[sharing.route_link[i]] += sharing.route_share[i]
            sharing.count[sharing.route_link[i]] += 1
    left = flows
    while left:
        level = np.inf
        full = -1
        for at in range(links):
            link = sharing.links[at]
            if sharing.count[link] and sharing.load[link] > 0:
                fair = max(sharing.room[link], 0.0) / sharing.load[link]
                if fair < level:
                    level, full = fair, link
        for at in range(flows):
            flow = sharing.flows[at]
            if sharing.rate[flow] < 0 and sharing.limit[flow] < level:
                level, full = sharing.limit[flow], -1
        for at in range(flows):
            flow = sharing.flows[at]
            if sharing.rate[flow] >= 0:
                continue
            stops = full < 0 and sharing.limit[flow] <= level
            route = sharing.route[flow]
            for i in range(sharing.route_start[route], sharing.route_start[route + 1]):
                stops |= sharing.route_link[i] == full and sharing.route_share[i] > 0
            if stops or level == np.inf:
                sharing.rate[flow] = level
                left -= 1
                for i in range(sharing.route_start[route], sharing.route_start[route + 1]):
                    link = sharing.route_link[i]
                    sharing.room[link] -= level * sharing.route_share[i]
                    sharing.load[link] -= sharing.route_share[i]
                    sharing.count[link] -= 1
    sharing.listed[0] = 0
    sharing.listed[1] = 0
