"""Ports that are network interfaces (AF_PACKET) or UDP sockets, all served by one thread.

A port's kernels are interpreted (interpreted.py) until they are compiled, which another thread does on a machine's
first start. It changes over between two batches, so no frame is lost or overtaken.

A UDP port, `udp:ADDRESS:PORT`, is a socket bound there; each datagram is one Ethernet frame. Frames go back to whoever
sent the last one, or, with `udp:ADDRESS:PORT,ADDRESS:PORT`, to the second address."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from emulator.p4switch.ports.interpreted import Kernel
from emulator.p4switch.ports.pcap import PcapWriter
from emulator.p4switch.ports.port import Frames, PortInfo, Ports, Take, TakeBatch
from switchml.errors import ConfigError
from switchml.net import packet_io, sockets, udp
from switchml.net.packet_io import Batch, PacketIO, new_batch, new_packet_io, send_frames
from switchml.net.packet_ring import new_ring, receive_ring
from switchml.net.trains import MAX_PACKETS, VIRTIO_BYTES

log = logging.getLogger("switchml.bmv2")

UDP_PREFIX = "udp:"

_POLL_MS = 500


class LivePort(ABC):
    """A port behind a socket. `is_warm`: its kernels are compiled. `dumps`: where frames that arrive and leave are
    written, if anywhere."""

    socket: socket.socket
    _receive: Kernel
    _send_batch: Kernel

    def __init__(self, number: int, interface: str) -> None:
        self.number = number
        self.interface = interface
        self.is_warm = False
        self.dumps: tuple[PcapWriter, PcapWriter] | None = None

    def warm(self) -> None:
        self._receive.compile()
        self._send_batch.compile()
        self.is_warm = True

    def is_up(self) -> bool:
        """Whether frames can pass."""
        return True

    @abstractmethod
    def receive(self, batch: Batch) -> int:
        """Fill a batch with what has arrived; returns how many frames."""

    @abstractmethod
    def send_batch(self, addresses: np.ndarray, lengths: np.ndarray, join: bool) -> None:
        """Send frames (int64[n] each), with `join` as trains where they belong together. One that the kernel does not
        take is lost. For the thread that receives."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a frame, from any thread. Raises OSError if the kernel does not take it."""


class InterfacePort(LivePort):
    """A port on a network interface. `io` is shared by the ports of a thread."""

    def __init__(self, number: int, interface: str, io: PacketIO) -> None:
        super().__init__(number, interface)
        self.socket = sockets.new_packet_socket(interface)
        self.socket.setsockopt(sockets.SOL_PACKET, sockets.AUXDATA, 1)
        self._io, self._ring = io, new_ring(self.socket)
        sockets.attach(self.socket, interface, promiscuous=True)
        none = np.zeros(0, np.int64)
        self._receive = Kernel(receive_ring, io, self._ring, 0, new_batch())
        self._send_batch = Kernel(send_frames, io, 0, none, none, packet_io.APART)
        self._state = Path("/sys/class/net", interface, "operstate")

    def is_up(self) -> bool:
        try:
            return self._state.read_text().strip() in ("up", "unknown")
        except OSError:
            return False

    def receive(self, batch: Batch) -> int:
        n: int = self._receive(self._io, self._ring, self.socket.fileno(), batch)
        batch.port[:n] = self.number
        return n

    def send_batch(self, addresses: np.ndarray, lengths: np.ndarray, join: bool) -> None:
        joining = packet_io.JOIN if join else packet_io.APART
        self._send_batch(self._io, self.socket.fileno(), addresses, lengths, joining)

    def send(self, data: bytes) -> None:
        os.writev(self.socket.fileno(), (bytes(VIRTIO_BYTES), data))


class UdpPort(LivePort):
    """A port on a UDP socket. Without a fixed address to send to, nothing is sent before somebody has sent here."""

    def __init__(self, number: int, interface: str) -> None:
        super().__init__(number, interface)
        here, _, there = interface.removeprefix(UDP_PREFIX).partition(",")
        self.peer = _endpoint(interface, there) if there else 0
        self._is_fixed = bool(there)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sockets.grow_buffers(self.socket, sockets.BUFFER_BYTES)
            self.socket.bind(udp.endpoint_text(_endpoint(interface, here)))
        except OSError as error:
            self.socket.close()
            raise ConfigError(f"can't open {interface!r}: {error.strerror or error}") from error
        self._io = udp.new_udp_io(self.socket)
        self._packets = udp.new_packets(MAX_PACKETS)
        self._receive = Kernel(udp.receive_batch, self._io, self._packets)
        self._send_batch = Kernel(udp.send_batch, self._io, self._packets, 0)

    def receive(self, batch: Batch) -> int:
        n: int = self._receive(self._io, self._packets)
        if n and not self._is_fixed:
            self.peer = int(self._packets.endpoint[n - 1])
        batch.port[:n] = self.number
        batch.address[:n] = self._packets.address[:n].view(np.int64)
        batch.length[:n] = self._packets.length[:n]
        return n

    def send_batch(self, addresses: np.ndarray, lengths: np.ndarray, join: bool) -> None:
        for start in range(0, len(addresses) if self.peer else 0, MAX_PACKETS):
            part = slice(start, start + MAX_PACKETS)
            n = len(addresses[part])
            self._packets.address[:n] = addresses[part].view(np.uint64)
            self._packets.length[:n] = lengths[part]
            self._packets.endpoint[:n] = self.peer
            self._send_batch(self._io, self._packets, n)

    def send(self, data: bytes) -> None:
        if self.peer:
            self.socket.sendto(data, udp.endpoint_text(self.peer))


def _endpoint(interface: str, text: str) -> int:
    address, _, port = text.rpartition(":")
    try:
        if not port.isdigit() or not 0 <= int(port) < 1 << 16:
            raise ValueError(port)
        return udp.endpoint(socket.gethostbyname(address), int(port))
    except (OSError, ValueError):
        raise ConfigError(f"{interface!r}: {text!r} is not ADDRESS:PORT (IPv4)") from None


def _frames(addresses: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    """The bytes of frames, copied."""
    return [ctypes.string_at(at, length) for at, length in zip(addresses.tolist(), lengths.tolist(), strict=True)]


class LivePorts(Ports):
    def __init__(self) -> None:
        self._io = new_packet_io()
        self._batch = new_batch()
        self._ports: dict[int, LivePort] = {}
        self._of_fd: dict[int, LivePort] = {}
        self._poller = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.POLLIN)
        self._lock = threading.RLock()
        self._trains = 0
        self._rounds = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, number: int, interface: str, pcap_dir: str | None = None) -> None:
        with self._lock:
            if number in self._ports:
                raise ConfigError(f"port {number} exists already: {self._ports[number].interface}")
            port: LivePort
            if interface.startswith(UDP_PREFIX):
                port = UdpPort(number, interface)
            else:
                port = InterfacePort(number, interface, self._io)
            if pcap_dir:
                dump, name = Path(pcap_dir), interface.replace("/", "_")
                port.dumps = PcapWriter(dump / f"{name}_in.pcap"), PcapWriter(dump / f"{name}_out.pcap")
            self._ports[number] = self._of_fd[port.socket.fileno()] = port
            self._poller.register(port.socket.fileno(), select.POLLIN)
            if self._thread is not None:
                self._warm(port)

    def remove(self, number: int) -> None:
        with self._lock:
            if number not in self._ports:
                raise ConfigError(f"there is no port {number}")
            port = self._ports.pop(number)
            self._poller.unregister(port.socket.fileno())
            del self._of_fd[port.socket.fileno()]
        # A socket stays open as long as a poll() that began before waits for it: end that first.
        if self._thread is not None and self._thread.is_alive():
            rounds = self._rounds
            os.eventfd_write(self._wake, 1)
            deadline = time.monotonic() + 1
            while self._rounds == rounds and time.monotonic() < deadline:
                time.sleep(0.001)
        port.socket.close()
        for dump in port.dumps or ():
            dump.close()

    def show(self) -> list[PortInfo]:
        with self._lock:
            return [PortInfo(number, port.interface, port.is_up()) for number, port in sorted(self._ports.items())]

    def start(self, take: Take, take_batch: TakeBatch | None = None) -> None:
        self._thread = threading.Thread(target=self._serve, args=(take, take_batch), name="ports", daemon=True)
        self._thread.start()

    def _serve(self, take: Take, take_batch: TakeBatch | None) -> None:
        for port in list(self._ports.values()):
            self._warm(port)
        while not self._is_closed:
            ready = self._poller.poll(_POLL_MS)
            self._rounds += 1
            for fd, _ in ready:
                if fd == self._wake:
                    os.eventfd_read(fd)
                with self._lock:
                    if fd in self._of_fd:
                        self._serve_port(self._of_fd[fd], take, take_batch)

    @staticmethod
    def _warm(port: LivePort) -> None:
        def warm() -> None:
            port.warm()
            log.info("Port %d is served by compiled code from now on", port.number)

        threading.Thread(target=warm, name="warm", daemon=True).start()

    def _serve_port(self, port: LivePort, take: Take, take_batch: TakeBatch | None) -> None:
        n = port.receive(self._batch)
        if not n:
            return
        trains = int(self._io.counts[packet_io.TRAINS])
        join, self._trains = trains > self._trains, trains
        frames: list[bytes] = []
        if port.dumps is not None:
            frames = _frames(self._batch.address[:n], self._batch.length[:n])
            port.dumps[0].write(*frames)
        if take_batch is None or not take_batch(self._batch, n, lambda records: self.send_records(records, join)):
            frames = frames or _frames(self._batch.address[:n], self._batch.length[:n])
            take([(port.number, data) for data in frames])

    def send_records(self, records: np.ndarray, join: bool) -> None:
        """Send frames by their addresses: int64[n, ≥ 3] of port, address, length. `join`: neighbours that belong
        together leave as trains, which is for those who send trains themselves: others would see odd packets."""
        for number, port in self._ports.items():
            mine = records[:, 0] == number
            addresses, lengths = records[mine, 1], records[mine, 2]
            if not len(addresses):
                continue
            port.send_batch(addresses, lengths, join)
            if port.dumps is not None:
                port.dumps[1].write(*_frames(addresses, lengths))

    def send(self, frames: Frames) -> None:
        for number, data in frames:
            port = self._ports.get(number)
            if port is None:
                continue
            if port.dumps is not None:
                port.dumps[1].write(data)
            try:
                port.send(data)
            except OSError as error:
                log.debug("Port %d: a frame of %d bytes was not sent: %s", number, len(data), error.strerror)

    def close(self) -> None:
        self._is_closed = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for number in list(self._ports):
            self.remove(number)
        os.close(self._wake)
