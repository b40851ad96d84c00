"""Ports that are pcap files or named pipes."""

import os
import struct
import subprocess
import sys
import threading

import pytest

from emulator.p4switch.ports.files import FilePorts
from emulator.p4switch.ports.pcap import MAGIC_NS, MAGIC_US, PcapReader, PcapWriter
from switchml.errors import ConfigError


def capture(records: list[tuple[int, bytes]], order: str = "<", magic: int = MAGIC_US) -> bytes:
    """A capture file of (time in ticks, frame)."""
    second = 10**9 if magic == MAGIC_NS else 10**6
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    for time, frame in records:
        data += struct.pack(order + "IIII", time // second, time % second, len(frame), len(frame)) + frame
    return data


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("magic", "tick_ns"), [(MAGIC_US, 1000), (MAGIC_NS, 1)])
def test_every_kind_of_capture(tmp_path, order, magic, tick_ns):
    path = tmp_path / "x.pcap"
    path.write_bytes(capture([(1_500_000_007, b"abc"), (5, b"")], order, magic))
    reader = PcapReader(path)
    assert reader.read() == (1_500_000_007 * tick_ns, b"abc")
    assert reader.read() == (5 * tick_ns, b"")
    assert reader.read() is None


def test_what_is_written_can_be_read(tmp_path):
    writer = PcapWriter(tmp_path / "x.pcap")
    writer.write(b"one")
    reader = PcapReader(tmp_path / "x.pcap")  # it is there at once
    writer.write(b"two")
    assert [reader.read().data, reader.read().data, reader.read()] == [b"one", b"two", None]


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "not a pcap"), (b"x" * 100, "not a pcap"), (capture([]) + b"x" * 5, "ends within a record"),
     (capture([(1, b"abc")])[:-1], "ends within a frame"),
     (capture([]) + struct.pack("<IIII", 0, 0, 3, 4) + b"abc", "only 3 of 4"),
     (capture([]) + struct.pack("<IIII", 0, 0, 1 << 30, 1 << 30), "1073741824 bytes")],
)  # fmt: skip
def test_damaged_captures(tmp_path, data, message):
    (tmp_path / "x.pcap").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        PcapReader(tmp_path / "x.pcap").read()


def run(ports: FilePorts, n: int) -> list[tuple[int, bytes]]:
    """The first n frames that ports give."""
    received, enough = [], threading.Event()

    def take(frames) -> None:
        received.extend(frames)
        if len(received) >= n:
            enough.set()

    ports.start(take, None)
    assert enough.wait(100)
    return received


def test_frames_come_in_the_order_of_their_times(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_in.pcap").write_bytes(capture([(1, b"1"), (4, b"4"), (4, b"4a")]))
    (tmp_path / "b_in.pcap").write_bytes(capture([(2, b"2"), (3, b"3"), (9, b"9")]))
    (tmp_path / "c_in.pcap").write_bytes(capture([]))
    ports = FilePorts(0)
    for number, name in enumerate("abc"):
        ports.add(number, name)
    assert run(ports, 6) == [(0, b"1"), (1, b"2"), (1, b"3"), (0, b"4"), (0, b"4a"), (1, b"9")]
    ports.send([(1, b"out"), (7, b"nowhere")])
    assert PcapReader(tmp_path / "b_out.pcap").read().data == b"out"
    assert PcapReader(tmp_path / "a_out.pcap").read() is None
    assert [(port.number, port.interface, port.is_up) for port in ports.show()] == [
        (0, "a", True), (1, "b", True), (2, "c", True),
    ]  # fmt: skip
    assert ports.show()[0].extra == {"in_pcap": "a_in.pcap", "out_pcap": "a_out.pcap"}
    with pytest.raises(ConfigError, match="port 1 exists"):
        ports.add(1, "a")
    with pytest.raises(ConfigError, match="can't be removed"):
        ports.remove(1)


def test_a_named_pipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "p_in.pcap")
    data = capture([(1, b"one"), (2, b"two")])
    threading.Thread(target=(tmp_path / "p_in.pcap").write_bytes, args=(data,), daemon=True).start()
    ports = FilePorts(0)
    ports.add(3, "p")
    assert run(ports, 2) == [(3, b"one"), (3, b"two")]


def test_an_error_in_a_file_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_in.pcap").write_bytes(capture([(1, b"abc")])[:-1])
    reported, errors = threading.Event(), []
    ports = FilePorts(0, lambda error: (errors.append(str(error)), reported.set()))
    ports.add(0, "a")
    ports.start(lambda frames: None, None)
    assert reported.wait(100)
    assert "ends within a frame" in errors[0]
    with pytest.raises(ConfigError, match="can't read x_in.pcap"):
        ports.add(1, "x")


FILL_UP = """
import resource, sys
from emulator.p4switch.ports.pcap import PcapWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = PcapWriter(sys.argv[1])
for start in range(0, 50, 5):
    writer.write(*(bytes([number]) * 100 for number in range(start, start + 5)))
writer.close()
"""


def test_a_file_that_is_full_ends_with_a_whole_frame(tmp_path):
    """1000 bytes hold a header of 24 and eight records of 116; the ninth was begun."""
    done = subprocess.run([sys.executable, "-c", FILL_UP, tmp_path / "x.pcap"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ends here, after 952 bytes: File too large") == 1
    reader = PcapReader(tmp_path / "x.pcap")
    assert [reader.read().data[:1] for _ in range(8)] == [bytes([number]) for number in range(8)]
    assert reader.read() is None
