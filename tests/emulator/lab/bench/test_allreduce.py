"""`switchml bench allreduce`: sizes, the bound, and the command as a user calls it. No test asks how long it took."""

import itertools
import signal
import subprocess

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from emulator.lab.bench import limits, report, sizes
from emulator.lab.bench.background import busy_processes
from emulator.lab.bench.ranks.inputs import numbers, shared_tensors
from emulator.lab.bench.ranks.workload import Workload
from emulator.lab.bench.sizes import COLLECTIVES, DTYPES, Case
from switchml.cli.main import cli
from switchml.errors import ConfigError
from tests.support import commands
from tests.support.html_pages import read_page


def start(*arguments: str) -> subprocess.Popen:
    return commands.start("bench", "allreduce", *arguments)


def run(*arguments: str) -> subprocess.CompletedProcess:
    return commands.run("bench", "allreduce", *arguments)


def run_json(*arguments: str) -> dict:
    return commands.run_json("bench", "allreduce", *arguments)


# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("64M", 64 << 20), ("1k", 1024), ("2G", 2 << 30), ("16KiB", 16 << 10), ("8KB", 8000), ("1.5M", 3 << 19)],
)
def test_size(text, size):
    assert sizes.parse_size(text) == size


@given(st.integers(1, sizes.LARGEST_BYTES // 4))
def test_size_survives_its_text(count):
    assert sizes.parse_size(sizes.text_of(4 * count)) == 4 * count


def test_sweep():
    assert sizes.parse_sweep("1K:16K:4") == [1 << 10, 4 << 10, 16 << 10]
    assert sizes.parse_sweep("1K:5K") == [1 << 10, 2 << 10, 4 << 10]
    assert sizes.parse_sweep("4K,1M") == [4 << 10, 1 << 20]


@pytest.mark.parametrize("text", ["1K:", "1K:4K:1", "1K:4K:x", "4K:1K:2", "1K:4K:2:2", "4K,,8K", "1:1G"])
def test_sweep_that_makes_no_sense(text):
    with pytest.raises(ConfigError):
        sizes.parse_sweep(text)


def test_small_sizes_are_called_often_and_repeated_more():
    small, large = sizes.single(4096), sizes.single(64 << 20)
    assert small.calls > 1 and large.calls == 1
    assert small.repeats > large.repeats >= 3
    assert small.size_bytes == 4096 and large.size_bytes == 64 << 20
    assert sizes.single(4096, repeats=2, warmup=0).repeats == 2


def test_ddp_buckets():
    cases = sizes.ddp_buckets(60 << 20)
    together = cases[-1]
    assert together.overlapped and together.calls == 1 and together.size_bytes == 60 << 20
    assert [4 * part for part in together.parts] == [1 << 20, 25 << 20, 25 << 20, 9 << 20]
    assert [case.size_bytes >> 10 for case in cases[:5]] == [4, 8, 16, 32, 64]
    assert {case.size_bytes >> 20 for case in cases[5:-1]} == {1, 9, 25}
    assert [4 * part for part in sizes.ddp_buckets(8192)[-1].parts] == [8192]


# The bound


def test_limit_is_the_sum_of_its_terms():
    limit = limits.Limit(4, 2, "udp", "int32", scan=1, encode=2, send=3, receive=4, add=5, decode=6, copy=9)
    assert limit.rank_ns == 16
    assert limit.aggregator_ns == 4 * 12
    assert limit.together_ns == 4 * 16 + 48
    assert limit.elements_per_s == pytest.approx(1e9 * 2 / (4 * 16 + 48))
    alone = limits.Limit(1, 64, "udp", "int32", scan=1, encode=2, send=3, receive=4, add=5, decode=6, copy=9)
    assert alone.elements_per_s == pytest.approx(1e9 / 16), "one rank is one thread"
    assert "16.000" in limit.explain()[1] and "48.000" in limit.explain()[2]


@pytest.mark.parametrize(("transport", "wire"), [("udp", "int32"), ("shm", "int16"), ("zmq", "int8")])
def test_limits_are_measured(transport, wire):
    limit = limits.measure(workers=3, transport=transport, wire=wire, cores=2)
    terms = limit.terms()
    assert all(value > 0 for name, value in terms.items() if name not in ("send", "receive"))
    assert (terms["send"] > 0) == (terms["receive"] > 0) == (transport != "shm")
    assert limit.elements_per_s > 0


def test_one_pair_has_no_spread():
    assert (report.spread(0.5, 0.5), report.spread(0.5, 1.25)) == ("", "0.50 – 1.25")


def test_busbw_factor():
    assert [report.busbw_factor(n) for n in (1, 2, 4)] == [0, 1, 1.5]
    factors = {"reduce_scatter": 0.75, "all_gather": 0.75, "broadcast": 1, "fsdp": 1.5}  # nccl-tests, PERFORMANCE.md
    assert {name: report.busbw_factor(4, name) for name in factors} == factors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_ranks_expect(collective, dtype):
    """Plain sums and copies of what the ranks begin with."""
    n = 3
    case = Case((6, 24), False, 1, 0, collective=collective, dtype=dtype)
    with shared_tensors(30, n) as tensors:
        ranks = [Workload(case, tensors, rank) for rank in range(n)]
        expected = [work.expected.copy() for work in ranks]
    for work in ranks:
        work.fill()
    results = [[] for _ in ranks]
    for steps in zip(*(itertools.chain(*work.calls) for work in ranks), strict=True):
        sources = [numbers(step.source, dtype).copy() for step in steps]
        for rank, step in enumerate(steps):
            result = {"all_gather": np.concatenate(sources), "broadcast": sources[0]}.get(step.kind)
            if result is None:
                result = np.sum(sources, 0, np.float64)
            if step.kind == "reduce_scatter":
                result = np.split(result, n)[rank]
            assert result.shape == step.target.shape
            results[rank].append(result)
    for rank in range(n):
        np.testing.assert_allclose(np.concatenate(results[rank]), expected[rank], rtol=1e-12)
        assert ranks[rank].result.size == expected[rank].size


# The command


def test_dtypes():
    dtypes = ("--dtype", "bfloat16,float16,int64,float64")
    results = run_json("--ranks", "2", "--sizes", "64K,1M", *dtypes, "--repeats", "1", "--against", "none")["results"]
    assert [(each["size_bytes"], each["dtype"]) for each in results[:3]] == [
        (65536, "bfloat16"), (65536, "float16"), (65536, "int64")
    ]  # fmt: skip
    assert len(results) == 8 and results[2]["elements"] == 8192
    errors = {each["dtype"]: each["relative_error"]["switchml"] for each in results}
    assert errors["int64"] == 0 < errors["bfloat16"] < 2**-8 and errors["float64"] < 2**-50


def test_a_sweep_of_one_size_is_a_list():
    (only,) = run_json("--ranks", "2", "--sizes", "4K", "--repeats", "1", "--against", "none")["results"]
    assert (only["size_bytes"], only["dtype"]) == (4096, "float32")


def test_one_size_against_gloo():
    pytest.importorskip("torch")
    result = run_json("--ranks", "2", "--size", "100000", "--repeats", "3")
    assert (result["workers"], result["size_bytes"], result["elements"]) == (2, 100000, 25000)
    assert (result["transport"], result["wire"]) == ("udp", "int32") or result["transport"] == "shm"
    assert len(result["seconds"]["switchml"]) == len(result["seconds"]["gloo"]) == len(result["ratios"]) == 3
    assert min(result["ratios"]) <= result["ratio"] <= max(result["ratios"])
    assert all(rate > 0 for rate in result["elements_per_s"].values())
    assert 0 < result["relative_error"]["switchml"] < 1e-6
    assert result["limit_elements_per_s"] > 0
    fraction = result["elements_per_s"]["switchml"] / result["limit_elements_per_s"]
    assert result["fraction_of_limit"] == pytest.approx(fraction)
    calls = 3 * result["calls_per_repeat"]
    assert result["packets"]["sent"] - result["packets"]["retransmitted"] >= 2 * calls * (
        98 if result["transport"] == "udp" else 13
    )
    assert result["packets"]["refused"] == 0
    assert set(result["usage_per_repeat"]) == {"switchml_rank", "gloo_rank", "aggregator"}


def test_both_directions_at_once():
    pytest.importorskip("torch")
    size = ("--ranks", "2", "--size", "100000", "--repeats", "1")
    result = run_json("--collective", "fsdp", *size)
    assert (result["collective"], result["size_bytes"], result["limit_elements_per_s"]) == ("fsdp", 100000, None)
    assert result["busbw_gb_per_s"] == result["algbw_gb_per_s"]  # of two ranks
    assert result["seconds"]["switchml"] and result["seconds"]["gloo"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_calls_of_torch(collective):
    """Which check each result, too."""
    pytest.importorskip("torch")
    chosen = ("--api", "torch", "--collective", collective, "--dtype", "bfloat16,float32")
    report = run_json(*chosen, "--ranks", "2", "--size", "100000", "--repeats", "1")
    assert (report["api"], report["device"]) == ("torch", "cpu")
    assert [len(each["seconds"]["switchml"]) for each in report["results"]] == [1, 1]
    assert all(each["packets"]["sent"] for each in report["results"])


def test_authenticated_packets_beside_plain_ones():
    result = run_json("--ranks", "2", "--size", "8K", "--repeats", "2", "--against", "none", "--authenticate")
    assert result["transport"] == "udp" and result["packets"]["refused"] == 0
    assert len(result["seconds"]["switchml"]) == len(result["seconds"]["plain"]) == len(result["ratios_to_plain"]) == 2
    assert min(result["ratios_to_plain"]) <= result["ratio_to_plain"] <= max(result["ratios_to_plain"])


def test_exact_sums_beside_other_work():
    result = run_json("--ranks", "2", "--size", "40000", "--repeats", "1", "--against", "none", "--wire", "exact")
    assert (result["wire"], result["beside"], result["limit_elements_per_s"]) == ("exact", 0, None)
    assert result["relative_error"]["switchml"] < 1e-7
    assert len(result["seconds"]["int32"]) == len(result["ratios_to_int32"]) == 1
    assert 1 <= result["packets_to_int32"] <= 2.2  # a short tensor's exponents are guessed, and wrong the first time


def test_beside_busy_processes():
    with busy_processes(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
        assert all(psutil.Process(process.pid).is_running() for process in processes)
    assert all(process.returncode is not None for process in processes)
    done = run("--ranks", "2", "--size", "4K", "--repeats", "1", "--against", "none", "--beside", "1")
    assert done.returncode == 0 and "beside 1 busy processes" in " ".join(done.stdout.split())


def test_sweep_as_table_and_picture(tmp_path):
    page = tmp_path / "page.html"
    done = run("--ranks", "3", "--sizes", "1K:16K:4", "--repeats", "1", "--against", "none", "--plot", str(page))
    assert done.returncode == 0, done.stderr
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line.split()[2:3] == ["float32"] and line.split()[0].isdigit()
    ]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("1024", "256", "float32"),
        ("4096", "1024", "float32"),
        ("16384", "4096", "float32"),
    ]
    for text in ("algbw", "busbw", "error", "3 ranks", "retransmitted", "limit", "aggregator"):
        assert text in done.stdout
    assert "gloo" not in done.stdout
    words = read_page(page)
    assert [words.count(size) for size in ("1K", "4K", "16K")] == [2, 2, 2]  # in the tables below both charts
    assert {"Time", "Bandwidth", "switchml, time (µs)", "limit, algbw (GB/s)"} <= set(words)
    assert not any("gloo" in word for word in words)


def test_too_large_for_memory():
    result = CliRunner().invoke(cli, ["bench", "allreduce", "--size", "16G", "--ranks", "256", "--against", "none"])
    assert result.exit_code == 1
    assert "GiB" in result.stderr and result.stderr.count("\n") == 1


def family_in_action(process: subprocess.Popen, ranks: int) -> list[psutil.Process]:
    """All processes below a running command, ranks last, once the table has begun."""
    for line in process.stdout:
        if "elements" in line:
            break
    children = psutil.Process(process.pid).children()
    grown = sorted((one for child in children for one in child.children()), key=lambda one: one.pid)
    assert len(grown) == ranks
    return [*children, *grown]


ENDLESS = ("--ranks", "2", "--size", "64K", "--repeats", "1000000", "--against", "none")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_command_leaves_nothing(number, code):
    process = start(*ENDLESS)
    try:
        everybody = family_in_action(process, 2)
        process.send_signal(number)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    commands.assert_all_end(everybody)


@pytest.mark.parametrize("victim", ["rank", "aggregator"])
def test_killed_process_is_named(victim):
    process = start(*ENDLESS)
    try:
        everybody = family_in_action(process, 2)
        aggregator = next(one for one in everybody if "host_agent.pytorch.aggregator" in one.cmdline())
        killed = everybody[-1] if victim == "rank" else aggregator
        killed.kill()
        err = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 1
    assert (f"(pid {killed.pid})" in err or "rank 1 lost" in err) if victim == "rank" else "aggregator" in err
    assert "Traceback" not in err
    commands.assert_all_end(everybody)
