"""Max-min fair sharing of links by transfers, computed by progressive filling (Bertsekas and Gallager, Data Networks,
6.5.2). All rates grow together until a link is full or a transfer reaches its own limit; the transfers this stops keep
their rate, the others continue. A change affects only transfers connected to it by links, so only those are recomputed.
"""

from typing import NamedTuple

import numpy as np

from emulator.jobs.workload.costs import Links
from switchml.runtime.jit import kernel

LINK = np.dtype(
    [
        ("bytes_per_s", "f8"),
        ("residual", "f8"),  # capacity left by flows with a final rate
        ("load", "f8"),  # total share of flows without a final rate
        ("growing", "i4"),  # number of flows without a final rate
        ("head", "i4"),  # first hop on this link, −1: none
        ("is_listed", "i4"),  # whether its flows are to be recomputed
    ],
    align=True,
)
HOP = np.dtype([("share", "f8"), ("link", "i4")], align=True)
FLOW = np.dtype([("limit", "f8"), ("rate", "f8"), ("route", "i4")], align=True)
"""A transfer on the fabric, in bytes/s; `route` −1: none. `rate` −1: not final yet."""


class Sharing(NamedTuple):
    """Flows on links. A flow has the number of the stream that leads its transfer; its hop k has the number flow ·
    width + k in the linked lists of each link, which are stored in `around`."""

    links: np.ndarray  # LINK (links,)
    routes: np.ndarray  # int64 (routes + 1,): route r has the hops `hops[routes[r]:routes[r + 1]]`
    hops: np.ndarray  # HOP
    flows: np.ndarray  # FLOW (streams,)
    around: np.ndarray
    """int32 (hops of all flows, 2): next hop on the same link, and the previous one, or −2 − link for the first."""
    listed_links: np.ndarray  # int32 (links,): those to be recomputed
    listed_flows: np.ndarray  # int32 (flows,)
    listed: np.ndarray  # int64 (2,): number of listed links, of listed flows


def empty_sharing(costed: Links, flows: int, longest_route: int) -> Sharing:
    """Return the state without flows on any link."""
    links = np.zeros(len(costed.link_bytes_per_s), LINK)
    links["bytes_per_s"] = costed.link_bytes_per_s
    links["head"] = -1
    hops = np.zeros(len(costed.link), HOP)
    hops["share"], hops["link"] = costed.share, costed.link
    table = np.zeros(flows, FLOW)
    table["route"] = -1
    return Sharing(
        links=links,
        routes=np.asarray(costed.start, np.int64),
        hops=hops,
        flows=table,
        around=np.zeros((flows * longest_route, 2), np.int32),
        listed_links=np.zeros(len(links), np.int32),
        listed_flows=np.zeros(flows, np.int32),
        listed=np.zeros(2, np.int64),
    )


@kernel(forceinline=True)
def enter(sharing, flow, route, limit):
    """Add `flow` to the links of `route`; its rate is 0 until `share_out`."""
    links, around = sharing.links, sharing.around
    width = len(around) // len(sharing.flows)
    sharing.flows[flow].route = route
    sharing.flows[flow].limit = limit
    sharing.flows[flow].rate = 0.0
    first = sharing.routes[route]
    for i in range(first, sharing.routes[route + 1]):
        hop, link = flow * width + i - first, sharing.hops[i].link
        old = links[link].head
        links[link].head = hop
        around[hop, 0] = old
        around[hop, 1] = -2 - link
        if old >= 0:
            around[old, 1] = hop
        _list_link(sharing, link)


@kernel(forceinline=True)
def leave(sharing, flow):
    """Remove `flow` from its links."""
    around = sharing.around
    width = len(around) // len(sharing.flows)
    route = sharing.flows[flow].route
    first = sharing.routes[route]
    for i in range(first, sharing.routes[route + 1]):
        hop = flow * width + i - first
        after, before = around[hop, 0], around[hop, 1]
        if before < 0:
            sharing.links[-2 - before].head = after
        else:
            around[before, 0] = after
        if after >= 0:
            around[after, 1] = before
        _list_link(sharing, sharing.hops[i].link)
    sharing.flows[flow].route = -1


@kernel(forceinline=True)
def _list_link(sharing, link):
    if not sharing.links[link].is_listed:
        sharing.links[link].is_listed = 1
        sharing.listed_links[sharing.listed[0]] = link
        sharing.listed[0] += 1


@kernel(forceinline=True)
def collect(sharing):
    """List all links and flows connected to the links listed so far and return the number of flows. Rates are not
    updated yet."""
    width = max(1, len(sharing.around) // len(sharing.flows))
    flows, at = 0, 0
    while at < sharing.listed[0]:
        hop = sharing.links[sharing.listed_links[at]].head
        at += 1
        while hop >= 0:
            flow = hop // width
            route = sharing.flows[flow].route
            for i in range(sharing.routes[route], sharing.routes[route + 1]):
                _list_link(sharing, sharing.hops[i].link)
            if hop == flow * width:  # its first hop, which is visited once
                sharing.listed_flows[flows] = flow
                flows += 1
            hop = sharing.around[hop, 0]
    sharing.listed[1] = flows
    return flows


@kernel(forceinline=True)
def share_out(sharing):
    """Set the rate of every listed flow, and clear the lists."""
    links, routes, hops, flows = sharing.links, sharing.routes, sharing.hops, sharing.flows
    link_count, flow_count = sharing.listed[0], sharing.listed[1]
    for at in range(link_count):
        link = sharing.listed_links[at]
        links[link].residual = links[link].bytes_per_s
        links[link].load = 0.0
        links[link].growing = 0
        links[link].is_listed = 0
    for at in range(flow_count):
        flow = sharing.listed_flows[at]
        flows[flow].rate = -1.0
        for i in range(routes[flows[flow].route], routes[flows[flow].route + 1]):
            links[hops[i].link].load += hops[i].share
            links[hops[i].link].growing += 1
    left = flow_count
    while left:
        level = np.inf
        full = -1
        for at in range(link_count):
            link = sharing.listed_links[at]
            if links[link].growing and links[link].load > 0:
                fair = max(links[link].residual, 0.0) / links[link].load
                if fair < level:
                    level, full = fair, link
        for at in range(flow_count):
            flow = sharing.listed_flows[at]
            if flows[flow].rate < 0 and flows[flow].limit < level:
                level, full = flows[flow].limit, -1
        for at in range(flow_count):
            flow = sharing.listed_flows[at]
            if flows[flow].rate >= 0:
                continue
            first, last = routes[flows[flow].route], routes[flows[flow].route + 1]
            stops = level == np.inf or (full < 0 and flows[flow].limit <= level)
            for i in range(first, last):
                stops |= hops[i].link == full and hops[i].share > 0
            if stops:
                flows[flow].rate = level
                left -= 1
                for i in range(first, last):
                    link = hops[i].link
                    links[link].residual -= level * hops[i].share
                    links[link].load -= hops[i].share
                    links[link].growing -= 1
    sharing.listed[0] = 0
    sharing.listed[1] = 0
