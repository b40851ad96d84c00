"""Files of every format, directories of them, and what is said about those that make no sense."""

import codecs
import dataclasses
import gzip
import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.traces.events import What, Wire
from emulator.traces.readers import native
from emulator.traces.readers.read import read
from emulator.traces.writers import chrome as chrome_write
from switchml.cli.main import cli
from switchml.errors import TraceError
from tests.support.commands import told
from tests.support.kineto_data import published, same, span, write


def work(rank):
    """A trace with one all-reduce."""
    float_ = {"Input type": ["float"], "Input Dims": [[100]]}
    return [
        span("aten::mm", 0, 50, args={"Record function id": 1}),
        span("c10d::allreduce_", 50, 10, args={"Record function id": 2}),
        span("gloo:all_reduce", 70, 100 + rank, tid=2, cat="user_annotation", args={"Record function id": 3, **float_}),
        span("aten::add_", 180, 20, args={"Record function id": 9}),
    ]


def job(folder, ranks=2):
    for rank in range(ranks):
        write(folder / f"rank-{rank}.json", work(rank), distributedInfo={"rank": rank, "world_size": ranks})
    return folder


def test_a_directory_has_a_trace_for_each_rank_in_their_order(tmp_path):
    write(tmp_path / "a.json", work(1), distributedInfo={"rank": 1, "world_size": 2})
    write(tmp_path / "b.json", work(0), distributedInfo={"rank": 0, "world_size": 2})
    (tmp_path / "README.md").write_text("# not a trace")
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    (tmp_path / "timeline.json").write_text('{"traceEvents": [{"ph": "X", "cat": "wait", "name": "a"}]}')
    traces = read(tmp_path)
    assert [(trace.rank, trace.source.name) for trace in traces] == [(0, "b.json"), (1, "a.json")]


def test_two_files_of_one_rank_are_named(tmp_path):
    for name in ("a.json", "b.json"):
        write(tmp_path / name, work(0), distributedInfo={"rank": 3, "world_size": 8})
    with pytest.raises(TraceError, match=r"a\.json and .*b\.json are both of rank 3"):
        read(tmp_path)


def test_the_rank_comes_from_the_file_or_its_name_or_the_caller(tmp_path):
    path = write(tmp_path / "trace.json", work(0), distributedInfo={})
    with pytest.raises(TraceError, match=r"distributedInfo\.rank.*rank-N\.json.*--rank"):
        read(path)
    assert read(path, rank=5)[0].rank == 5
    assert read(write(tmp_path / "worker_rank12.json", work(0), distributedInfo={}))[0].rank == 12
    with pytest.raises(TraceError, match="of rank 0 according to its metadata, not of rank 1"):
        read(write(tmp_path / "x.json", work(0), distributedInfo={"rank": 0}), rank=1)
    alone = write(tmp_path / "alone.json", [span("aten::mm", 0, 5)], distributedInfo={})
    assert (read(alone)[0].rank, read(alone)[0].world_size) == (0, 1)


@pytest.mark.parametrize(("name", "content", "complaint"), [
    ("x.json", '{"schemaVersion": 1, "traceEvents": []}', "no events"),
    ("x.json", '{"traceEvents": [{"ph": "X", "cat": "blink", "name": "a"}]}', "no trace that is known here"),
    ("x.json", '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "a", "name": "b"}]}', "categories are a"),
    ("x.json", '{"a": 1}', "no trace that is known here"), ("x.bin", "\x05hello world", "no trace that is known here"),
    ("x.npz", "PK\x03\x04", "no trace that is known here"),
    ("x.json", '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": []}]}', "not as expected"),
])  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, name, content, complaint):
    (tmp_path / name).write_text(content)
    ran = CliRunner().invoke(cli, ["trace", "info", str(tmp_path / name)])
    assert ran.exit_code == 1
    assert complaint in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_nothing_there(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="no trace in"):
        read(tmp_path)


def test_without_its_extra_the_reader_says_what_to_install(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("emulator.traces", "msgspec"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    ran = CliRunner().invoke(cli, ["trace", "info", str(tmp_path)])
    assert ran.exit_code == 1
    assert "pip install 'switchml[trace]'" in ran.stderr


def test_our_own_files_are_the_trace(tmp_path):
    trace = read(published("nccl_data.json.gz"))[0]
    n = 5
    wire = Wire(*(np.arange(n).astype(kind) for kind in ("f8", "i1", "i4", "i8", "i8", "i1", "i4")))
    trace = dataclasses.replace(trace, wire=wire, gradient_names={7: "layer.weight"})
    native.write(trace, tmp_path / "rank-0.trace.npz")
    again = read(tmp_path)[0]
    same(trace, again)
    for field in dataclasses.fields(Wire):
        assert np.array_equal(getattr(trace.wire, field.name), getattr(again.wire, field.name))


def test_a_timeline_has_every_event_and_clocks_of_one_host_stay_as_they_were(tmp_path):
    traces = read(job(tmp_path))
    late = dataclasses.replace(traces[1], epoch_s=traces[0].epoch_s + 1e-3)
    chrome_write.write([traces[0], late], tmp_path / "t.json")
    spans = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == sum(len(trace.events) for trace in traces)
    first = {rank: min(e["ts"] for e in spans if e["pid"] == rank) for rank in (0, 1)}
    assert first[1] - first[0] == pytest.approx(1000)
    reduce = [e for e in spans if e["cat"] == "collective"]
    assert {e["args"]["bytes"] for e in reduce} == {400.0}


def execution_trace(path, nodes):
    """`nodes`: (record, name, read storages, written storages)."""

    def tensors(storages):
        return {"values": [[1, storage, 0, 4, 4, "cpu"] for storage in storages], "shapes": [], "types": []}

    told = [
        {"id": 10 + record, "name": name, "ctrl_deps": 1, "inputs": tensors(reads), "outputs": tensors(writes),
         "attrs": [{"name": "rf_id", "type": "uint64", "value": record}]}
        for record, name, reads, writes in nodes
    ]  # fmt: skip
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": told}))


def test_an_execution_trace_tells_who_waited_for_a_collective(tmp_path):
    """The one on the same storage; and an end that was recorded after the waiter went on is put right."""
    job(tmp_path)
    execution_trace(tmp_path / "rank-0.et.json", [(3, "gloo:all_reduce", [8], []), (9, "aten::add_", [8], [8])])
    execution_trace(tmp_path / "rank-1.et.json", [(3, "gloo:all_reduce", [8], []), (9, "aten::add_", [7], [7])])
    events = work(0)
    events[2]["dur"] = 130  # until 200, although aten::add_ began at 180
    write(tmp_path / "rank-0.json", events, distributedInfo={"rank": 0, "world_size": 2})
    first, second = read(tmp_path)

    def waited(trace):
        names = [trace.names[i] for i in trace.events.name]
        return [(names[a], names[b]) for a, b in trace.causes.tolist() if trace.events.what[a] == What.COLLECTIVE]

    assert waited(first) == [("gloo:all_reduce", "aten::add_")]
    assert waited(second) == []
    at = int(np.flatnonzero(first.events.what == What.COLLECTIVE)[0])
    assert first.events.end_s[at] == pytest.approx(180e-6)


def test_info_names_what_is_missing(tmp_path):
    write(tmp_path / "rank-0.json", work(0)[:1] + work(0)[2:3], distributedInfo={"rank": 0, "world_size": 4})
    said = told("trace", "info", tmp_path)
    assert said["missing"] == ["3 of 4 ranks have no trace here (1, 2, 3)"]
    assert said["ranks"][0]["collectives"][0]["bytes"] == 400
    assert CliRunner().invoke(cli, ["trace", "info", str(tmp_path)]).exit_code == 0


def test_convert_writes_what_read_reads(tmp_path):
    (tmp_path / "in").mkdir()
    traces = read(job(tmp_path / "in"))
    for target in ("switchml", "chakra"):
        out = tmp_path / target
        assert len(told("trace", "convert", tmp_path / "in", "--to", target, "--out", out)["files"]) == 2
        for one, other in zip(traces, read(out), strict=True):
            same(one, other)


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path):
    write(tmp_path / "rank-0.json", work(0), distributedInfo={"rank": 0, "world_size": 2})
    plain = read(tmp_path / "rank-0.json")
    (tmp_path / "rank-0.json").write_bytes(codecs.BOM_UTF8 + (tmp_path / "rank-0.json").read_bytes())
    same(plain[0], read(tmp_path / "rank-0.json")[0])
    (tmp_path / "rank-0.json").write_bytes(gzip.compress((tmp_path / "rank-0.json").read_bytes()))
    same(plain[0], read(tmp_path / "rank-0.json")[0])


@pytest.mark.parametrize("schema", ["1.1.1-chakra.0.0.4", "1.0.1"])
@pytest.mark.parametrize("command", [["trace", "replay"], ["trace", "emulate", "--cluster", "a100-dgx"]])
def test_an_execution_trace_alone_is_explained(schema, command, tmp_path):
    execution_trace(tmp_path / "et.json", [(3, "aten::add_", [8], [8])])
    text = (tmp_path / "et.json").read_text().replace("1.1.1-chakra.0.0.4", schema)
    (tmp_path / "et.json").write_text(text)
    ran = CliRunner().invoke(cli, [*command, str(tmp_path / "et.json")])
    assert ran.exit_code != 0
    assert "is PyTorch's execution trace" in ran.output and "rank-N in the names of both" in ran.output
