"""The aggregator's state as Prometheus metrics: a collector over `StatusReply`, a text dump of it, and a small HTTP
page.

Counter names are those of switchml.counters (docs/protocol.md section 3). A job's metrics exist while it runs, on the
page only if it has no secret; `switchml_aggregator_*_total` include the jobs that have ended.
"""

import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from switchml.control import v2_pb2
from switchml.counters import COUNTERS
from switchml.errors import ConfigError

HELP = {
    "accepted": "Contributions that were added to a slot",
    "completed": "Rounds that this rank's packet completed",
    "answered": "Retransmissions of completed rounds, answered with the stored result",
    "duplicates": "Contributions that had been added already",
    "waits": "Wait packets sent to a rank that retransmitted while others are missing",
    "stale": "Contributions older than the slot's round",
    "refused_window": "Contributions outside the slot's window",
    "refused_tag": "Packets with the tag of another job",
    "refused_format": "Contributions of a type or size that is not the job's",
    "received_packets": "Datagrams received",
    "received_bytes": "Bytes received, headers of UDP and below not counted",
    "sent_packets": "Datagrams sent",
    "sent_bytes": "Bytes sent, headers of UDP and below not counted",
    "retransmissions": "Contributions marked as retransmissions",
    "overflow": "Rounds in which a lane overflowed",
    "mixed": "Rounds whose ranks used different exponents",
    "refused_auth": "Packets without the right authentication tag",
}


class StatusCollector(Collector):
    """Converts the result of `status()` to metrics each time they are collected."""

    def __init__(self, status: Callable[[], v2_pb2.StatusReply]):
        self._status = status

    def collect(self) -> Iterable[Metric]:
        reply = self._status()
        yield from _aggregator(reply)
        live = [job for job in reply.jobs if job.state not in ("ended", "failed")]
        yield from _jobs(live)
        yield from _ranks(live)


def _aggregator(reply: v2_pb2.StatusReply) -> Iterable[Metric]:
    plane = reply.dataplane
    info = {
        "version": reply.version,
        "dataplane": plane.kind,
        "data_address": f"{plane.address.ip}:{plane.address.port}",
    }
    yield InfoMetricFamily("switchml_aggregator", "The aggregator and its data plane", value=info)
    yield GaugeMetricFamily(
        "switchml_aggregator_uptime_seconds", "Time since the aggregator started", value=reply.uptime_s
    )
    yield GaugeMetricFamily(
        "switchml_slot_capacity", "Slots that all v2 jobs together may have", value=plane.slot_capacity
    )
    yield GaugeMetricFamily("switchml_slots_allocated", "Slots that v2 jobs have", value=plane.slots_allocated)
    yield GaugeMetricFamily(
        "switchml_hidden_jobs", "Live jobs with a secret, whose metrics are not here", value=reply.hidden_jobs
    )
    refused = CounterMetricFamily(
        "switchml_refused_packets",
        "Packets that belong to no job, and control messages that could not be read, by what was wrong",
        labels=["cause"],
    )
    for name, count in sorted(reply.refused.items()):
        refused.add_metric([name.removeprefix("refused_")], count)
    yield refused
    for name in COUNTERS:
        yield CounterMetricFamily(
            f"switchml_aggregator_{name}",
            f"{HELP.get(name, name)}; jobs that are over or shown",
            value=reply.totals[name],
        )


def _jobs(jobs: list[v2_pb2.JobStatus]) -> Iterable[Metric]:
    gauges: list[tuple[str, str, Callable[[v2_pb2.JobStatus], float]]] = [
        ("world_size", "Ranks that the job has when complete", lambda job: job.world_size),
        ("ranks", "Ranks that are in", lambda job: sum(rank.state == "joined" for rank in job.ranks)),
        (
            "missing_ranks",
            "Ranks that have not joined, or that a round has waited for longer than a second",
            lambda job: len(job.missing),
        ),
        ("age_seconds", "Time since the first rank joined", lambda job: job.age_s),
        ("slots", "Slots that the job has", lambda job: job.slots),
        ("slots_in_use", "Slots with a round under way", lambda job: job.slots_in_use),
        ("goodput_bits_per_second", "Payload of completed rounds over the last second", lambda job: job.goodput_bps),
    ]
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"switchml_job_{name}", text, labels=["job", "job_id", "protocol", "state"])
        for job in jobs:
            gauge.add_metric([job.name, str(job.job_id), str(job.protocol), job.state], value(job))
        yield gauge


def _ranks(jobs: list[v2_pb2.JobStatus]) -> Iterable[Metric]:
    for name in COUNTERS:
        counter = CounterMetricFamily(f"switchml_rank_{name}", HELP.get(name, name), labels=["job", "job_id", "rank"])
        for job in jobs:
            for rank in job.ranks:
                counter.add_metric([job.name, str(job.job_id), str(rank.rank)], rank.counters.get(name, 0))
        yield counter


def as_text(reply: v2_pb2.StatusReply) -> str:
    """`reply` in Prometheus' text format."""
    return generate_latest(_registry(lambda: reply)).decode()


class MetricsPage:
    """A page that Prometheus can scrape, served by a thread of its own at `address`."""

    def __init__(self, server: WSGIServer, thread: threading.Thread):
        self._server = server
        self._thread = thread
        self.address = str(server.server_address[0]), int(server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(bind: str, port: int, status: Callable[[], v2_pb2.StatusReply]) -> MetricsPage:
    """Serve the metrics over HTTP (port 0: any free one). `status` is called in other threads. Raises ConfigError."""
    try:
        server, thread = start_http_server(port, addr=bind, registry=_registry(status))
    except OSError as error:
        raise ConfigError(
            f"metrics port {bind}:{port}: {error.strerror}; choose another with --metrics-port"
        ) from error
    server.handle_error = _ignore_client  # type: ignore[method-assign]  # replaced
    return MetricsPage(server, thread)


def _ignore_client(request: object, client_address: object) -> None:
    """Error handler that suppresses the traceback of a client that disconnects during its request."""


def _registry(status: Callable[[], v2_pb2.StatusReply]) -> CollectorRegistry:
    # By default, registering would call status() for the names; the page may start before there is a status.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return registry
