"""What onlookers see: status for people and programs, Prometheus, live events, and the two commands."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from switchml.cli.status import status as status_command
from switchml.control import client, wording
from switchml.control.events import follow
from switchml.counters import COUNTERS
from switchml.errors import JoinError
from tests.support.launch import until
from tests.switchml.control.conftest import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]


def run_status(aggregator, *options: str) -> str:
    result = CliRunner(env={"COLUMNS": "220"}).invoke(status_command, ["--aggregator", aggregator.address, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def busy(start):
    """A running job of two with something counted, a forming one, and one that failed."""
    aggregator = start(metrics_port=0)
    failed = aggregator.join(job="old", data_address=("127.0.0.1", 9))
    failed.leave()
    aggregator.sessions = aggregator.fill(2, job="resnet [50]", slots=64)
    aggregator.job_id = aggregator.sessions[0].info.job_id
    aggregator.plane.counts[aggregator.job_id][1].update(
        accepted=12, received_packets=13, received_bytes=13442, completed=5
    )
    aggregator.plane.missing[aggregator.job_id] = (0,)
    waiting = threading.Thread(
        target=lambda: pytest.raises(JoinError, aggregator.join, 1, 3, job="forming", data_address=("127.0.0.1", 8))
    )
    waiting.start()
    until(lambda: len(client.status(aggregator.address).jobs) == 3)
    yield aggregator
    aggregator.controller.stop()
    waiting.join()


def test_json_has_everything(busy):
    reply = json.loads(run_status(busy, "--json"))
    assert reply["dataplane"] == {
        "kind": "fake", "address": {"ip": "127.0.0.1", "port": 48864}, "slot_capacity": 65536, "slots_allocated": 64,
        "receive_buffer_bytes": 0, "transports": ["udp", "zmq"], "mac": 0, "switch": "", "most_parts": 1, "memory": "",
    }  # fmt: skip
    assert reply["refused"] == {"refused_address": 3, "refused_message": 0} and reply["totals"]["accepted"] == 12
    assert reply["events_address"] == "{}:{}".format(*busy.addresses.events)
    running, forming, old = reply["jobs"]
    assert (running["name"], running["state"], running["slots"], running["missing"]) == (
        "resnet [50]",
        "running",
        64,
        [0],
    )
    assert (
        set(running["ranks"][1]["counters"]) == set(COUNTERS)
        and running["ranks"][1]["counters"]["received_bytes"] == 13442
    )
    assert (
        running["ranks"][0]["address"] == {"ip": "127.0.0.1", "port": 4000} and running["ranks"][0]["state"] == "joined"
    )
    assert (forming["state"], forming["job_id"], forming["missing"]) == ("forming", 0, [0, 2])
    assert (old["state"], old["reason"]) == ("ended", "all ranks left")
    # Nothing that would let a stranger into a job.
    assert not {"tag", "isn", "secret", "token"} & set(running)


def test_collectives_are_counted_by_their_way(busy):
    busy.sessions[0].count({"all_gather": 3, "all_gather/gloo": 1, "all_to_all/gloo": 2, "\x1b[2J": 1}, {})
    busy.sessions[1].count({"all_gather": 4}, {})
    until(lambda: all(rank.calls for rank in client.status(busy.address).jobs[0].ranks))
    lines = run_status(busy).split("Collectives")[1].splitlines()
    assert [word.strip() for word in lines[3].split("  ") if word.strip()] == ["resnet [50]", "all_gather", "4", "1"]
    assert "all_to_all" in lines[4] and "\x1b[2J" not in json.dumps(run_status(busy, "--json"))


def test_planned_loaders_show_what_they_counted(busy):
    counted = {"steps": 7, "buffer_hits": 30, "peer_hits": 10, "storage_samples": 60, "reads": 12, "read_bytes": 4e6}
    busy.sessions[1].count({}, {**counted, "waits": 3, "wait_s": 1.25, "\x1b[2J": 1.0, "wait_ms": math.inf})
    until(lambda: client.status(busy.address).jobs[0].ranks[1].loading)
    lines = run_status(busy).split("Planned loaders")[1].splitlines()
    words = ["resnet [50]", "1", "7", "30", "10", "60", "12", "4.0", "0", "3", "1.2"]
    assert [word.strip() for word in lines[4].split("  ") if word.strip()] == words
    (told,) = (
        rank["loading"] for rank in json.loads(run_status(busy, "--json"))["jobs"][0]["ranks"] if rank["loading"]
    )
    assert told == counted | {"waits": 3, "wait_s": 1.25}


@pytest.mark.slow
def test_rates_come_from_the_last_second(busy):
    counts = busy.plane.counts[busy.job_id][0]

    def rates() -> bool:
        counts["completed"] += 1000
        return client.status(busy.address).jobs[0].goodput_bps > 0

    until(rates)
    job = client.status(busy.address).jobs[0]
    assert job.goodput_bps == pytest.approx(sum(rank.rates["completed"] for rank in job.ranks) * 1024 * 8)


def samples(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus(busy):
    by_command = samples(run_status(busy, "--prometheus"))
    with urllib.request.urlopen("http://{}:{}/metrics".format(*busy.addresses.metrics)) as page:
        by_page = samples(page.read().decode())
    rank = (("job", "resnet [50]"), ("job_id", str(busy.job_id)), ("rank", "1"))
    for values_by_key in (by_command, by_page):
        assert values_by_key[("switchml_rank_received_bytes_total", *rank)] == 13442
        assert values_by_key["switchml_aggregator_accepted_total",] == 12
        assert values_by_key["switchml_refused_packets_total", ("cause", "address")] == 3
        job = (("job", "forming"), ("job_id", "0"), ("protocol", "2"), ("state", "forming"))
        assert values_by_key[("switchml_job_missing_ranks", *job)] == 2
        assert not any(("job", "old") in key for key in values_by_key)
    assert by_command.keys() == by_page.keys()


def test_events_cover_a_jobs_whole_life(aggregator):
    heard: list[dict] = []

    def listen() -> None:
        with closing(follow(*aggregator.addresses.events, timeout_s=DEADLINE_S)) as events:
            for event in events:
                heard.append(event)
                if (event["event"], event.get("job")) == ("job_ended", "x"):
                    return

    listening = threading.Thread(target=listen)
    listening.start()
    # A subscription takes a moment to arrive: make noise until it has.
    until(lambda: heard or aggregator.join(job="noise", data_address=("127.0.0.1", 9)).leave())
    first, second = aggregator.fill(2)
    aggregator.plane.missing[first.info.job_id] = (1,)
    until(lambda: any(event["event"] == "rates" and event["job"] == "x" for event in heard))
    first._channel.close()
    listening.join()
    story = [event for event in heard if event.get("job") == "x"]
    kinds = [event["event"] for event in story]
    assert kinds[:4] == ["job_forming", "rank_joined", "rank_joined", "job_started"]
    assert kinds[-2:] == ["peer_lost", "job_ended"] and set(kinds[4:-2]) == {"rates", "stall"}
    assert next(event for event in story if event["event"] == "stall")["missing"] == [1]
    assert story[-1]["state"] == "failed" and story[-2]["ranks"] == [0]
    assert all(event["time"] > 1.7e9 for event in story)
    for event in story:
        assert "job 'x': " in wording.describe_at(event)
    assert second.info.job_tag not in [value for event in story for value in event.values()]


@pytest.mark.slow
def test_watch_follows_the_events(aggregator):
    command = [sys.executable, "-m", "switchml", "status", "--aggregator", aggregator.address, "--watch"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert "following events at" in watching.stderr.readline()
        session = aggregator.join()  # from here on there are rates each second
        assert "job 'x': " in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(DEADLINE_S) == 130
    session.leave()


def test_the_numbers_of_people():
    rates = [wording.si(value, "bit/s") for value in (0, 12.34, 1234, 1.25e9)]
    assert rates == ["0 bit/s", "12.3 bit/s", "1.23 kbit/s", "1.25 Gbit/s"]
    assert [wording.duration(value) for value in (3.21, 310, 7380)] == ["3.2 s", "5 min 10 s", "2 h 3 min"]


@pytest.mark.slow  # the data plane's kernels may have to be compiled first
def test_the_aggregate_command():
    ports = ("--control-port", "0", "--data-port", "0", "--metrics-port", "0")
    command = [sys.executable, "-m", "switchml", "aggregate", *ports, "--tunnel", "--json"]
    wide = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=wide
    ) as process:
        addresses = json.loads(process.stdout.readline())
        ready = process.stderr.readline()
        assert ready == (
            "switchml aggregator ready: control {control}, data {data}, events {events}, tunnel {tunnel}, "
            "metrics {metrics}\n".format(**addresses)
        )
        session = client.join(addresses["control"], job="x", rank=0, world_size=1, data_address=("127.0.0.1", 4000))
        assert "{}:{}".format(*session.info.data_address) == addresses["data"]
        over = threading.Event()
        reasons = []
        session.events(lambda event: (reasons.append(event.reason), over.set()))

        port = addresses["control"].rpartition(":")[2]
        second = subprocess.run(
            [*command[:4], "--control-port", port, "--data-port", "0"], cwd=ROOT, capture_output=True, text=True
        )
        assert second.returncode == 1 and second.stdout == ""
        (line,) = second.stderr.splitlines()
        assert line.startswith(
            f"switchml: error: control port 127.0.0.1:{port} can't be opened: Address already in use"
        )

        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout.read() == "" and process.stderr.read() == ""
        assert over.wait(DEADLINE_S) and reasons == ["aggregator shut down"]
