"""Tables of nccl-tests: both forms are read, and curves are found again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.cluster import tables
from emulator.cluster.topology import GroupLayout
from switchml.errors import ConfigError

MB = 2.0**20


def write(path, sizes, seconds):
    lines = ["size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)"]
    lines += [
        f"{int(s)},{int(s) // 4},float,{t * 1e9:.0f},1.0,{t * 1e9:.0f},1.0" for s, t in zip(sizes, seconds, strict=True)
    ]
    path.write_text("\n".join(lines))


def printed(sizes, seconds, hosts, per_host, *, root="-1 ", unit=1e6, share=None, label=""):
    """What all_reduce_perf prints. `share`: bus bandwidth over algorithm bandwidth, 2(n-1)/n unless given."""
    ranks = hosts * per_host
    share = 2 * (ranks - 1) / ranks if share is None else share
    lines = [f"#  Rank {i:2} Group  0 Pid 7 on node{i // per_host} device {i % per_host}" for i in range(ranks)]
    lines += ["#       size   count   type  redop    time   algbw   busbw"]
    for size, s in zip(sizes, seconds, strict=True):
        rates = f"{s * unit:.4f} {size / s / 1e9:.2f} {size / s / 1e9 * share:.2f} 0"
        lines.append(f"{int(size)} {int(size) // 4} float sum {root}{rates} {rates}")
    return "\n".join(label + line for line in lines)


@pytest.mark.parametrize(
    "how", [{}, {"root": ""}, {"root": "", "unit": 1e3}, {"label": "0: "}, {"label": "[1,0]<stdout>:"}]
)
def test_every_version_reads_the_same(tmp_path, how):
    """With the root's column or without it (before 2.11), in ms (before 2.8), labelled by srun or mpirun."""
    sizes, seconds = np.geomspace(1e3, 1e9, 12).round(), np.geomspace(2e-5, 5e-3, 12)
    (tmp_path / "t.txt").write_text(printed(sizes, seconds, hosts=2, per_host=8, **how))
    read = tables.read(tmp_path / "t.txt")
    assert (read.ranks, read.nodes) == (16, 2) and read.layout(8) == GroupLayout(16, 2, 8, 2)
    assert read.size_bytes.tolist() == sizes.tolist() and read.seconds == pytest.approx(seconds, rel=5e-3)


def test_what_is_not_an_all_reduce_is_refused(tmp_path):
    sizes, seconds = np.arange(1, 9) * MB, np.arange(1, 9) * 1e-5 + 2e-5
    (tmp_path / "gather.txt").write_text(printed(sizes, seconds, 1, 8, share=7 / 8))
    with pytest.raises(ConfigError, match="expected all-reduces among 8 ranks.* 1.750 .*found 0.875"):
        tables.read(tmp_path / "gather.txt")
    text = printed(sizes, seconds, 1, 8).replace(f"{MB / 3e-5 / 1e9:.2f} ", "1.00 ")
    (tmp_path / "wrong.txt").write_text(text)
    with pytest.raises(ConfigError, match="times disagree with the bandwidths"):
        tables.read(tmp_path / "wrong.txt")


def test_a_name_may_say_how_many_nodes(tmp_path):
    write(tmp_path / "ar_2x8gpu.txt", np.arange(1, 9) * MB, np.full(8, 1e-5))
    write(tmp_path / "ar_32gpu.txt", np.arange(1, 9) * MB, np.full(8, 1e-5))
    two, four = tables.read_all(tmp_path)
    assert two.layout(8) == GroupLayout(16, 2, 8, 2) and four.layout(8) == GroupLayout(32, 4, 8, 4)


def test_csv_and_program_output_read_the_same(tmp_path):
    sizes, seconds = np.arange(1, 9) * MB, np.arange(1, 9) * 1e-5 + 2e-5
    write(tmp_path / "a_4gpu.txt", sizes, seconds)
    (tmp_path / "b.log").write_text(printed(sizes, seconds, hosts=1, per_host=4))
    one, other = tables.read_all(tmp_path)
    assert one.ranks == other.ranks == 4
    assert one.size_bytes.tolist() == other.size_bytes.tolist() == sizes.tolist()
    assert one.seconds == pytest.approx(seconds) and other.seconds == pytest.approx(seconds)


@given(st.floats(1e-6, 1e-4), st.floats(1e9, 1e12), st.floats(1e-6, 1e-4), st.floats(1e9, 1e12), st.integers(5, 20))
def test_two_segments_are_found_again(latency, rate, latency_after, rate_after, cut):
    sizes = np.arange(1, 65) * MB
    seconds = np.where(sizes <= cut * MB, latency + sizes / rate, latency_after + sizes / rate_after)
    curve = tables.fit(sizes, seconds, 2)
    assert curve.seconds(sizes) == pytest.approx(seconds, rel=0.02)


def test_one_segment_is_a_line():
    sizes = np.arange(1, 65) * MB
    curve = tables.fit(sizes, 3e-5 + sizes / 1e11, 1)
    assert curve.at(5 * MB) == (pytest.approx(3e-5), pytest.approx(1e11))
    assert float(curve.seconds(1.0)) == pytest.approx(3e-5)


def test_tables_are_known_by_their_content(tmp_path):
    sizes, seconds = np.arange(1, 9) * MB, np.arange(1, 9) * 1e-5 + 2e-5
    write(tmp_path / "AR_GPU4_1M_1024M_LUT", sizes, seconds)
    text = (tmp_path / "AR_GPU4_1M_1024M_LUT").read_text()
    (tmp_path / "v100_8gpu.table").write_text("\ufeff" + text)
    (tmp_path / "README.txt").write_text("All-reduces of 8 GPUs.\n2024 was the year.\n")
    (tmp_path / "plot.png").write_bytes(bytes(range(256)))
    assert [(one.ranks, len(one.seconds)) for one in tables.read_all(tmp_path)] == [(4, 8), (8, 8)]


def test_what_is_no_table_is_refused(tmp_path):
    (tmp_path / "x_2gpu.txt").write_text("hello\n")
    with pytest.raises(ConfigError, match="found 0 rows"):
        tables.read_all(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder"):
        tables.read_all(tmp_path / "none")
    write(tmp_path / "x.txt", np.arange(1, 9) * MB, np.full(8, 1e-5))
    with pytest.raises(ConfigError, match="0 ranks"):
        tables.read(tmp_path / "x.txt")


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_empty_messages_are_no_rows(tmp_path, rows):
    """nccl-tests begins with sizes of 0 bytes where -b is smaller than an element of each rank."""
    lines = ["0 0 float sum -1 4.5 0.00 0.00 0"] * 6 + ["1024 256 float sum -1 10.24 0.10 0.18 0"] * rows
    (tmp_path / "x_8gpu.txt").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=f"found {rows} rows"):
        tables.read(tmp_path / "x_8gpu.txt")


@pytest.mark.parametrize("wrong_s", [0.0, np.inf, np.nan])
def test_a_time_that_is_none_is_refused(tmp_path, wrong_s):
    seconds = np.full(8, 1e-5)
    seconds[3] = wrong_s
    write(tmp_path / "x_2gpu.txt", np.arange(1, 9) * MB, seconds)
    with pytest.raises(ConfigError, match="x_2gpu.txt: expected sizes and times above 0 and finite"):
        tables.read(tmp_path / "x_2gpu.txt")
