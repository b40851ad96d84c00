"""Ports that are network interfaces (AF_PACKET) or UDP sockets, all served by one thread.

A port's frames come one by one, in plain Python, until its kernels are there: on a machine's first start these are
compiled, in another thread. It changes over between two frames, so none is lost or overtaken.

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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from emulator.p4switch.ports import packet_io, plain
from emulator.p4switch.ports.packet_io import Batch, new_batch, new_packet_io, receive_frames, send_frames
from emulator.p4switch.ports.packet_ring import new_ring, receive_ring
from emulator.p4switch.ports.pcap import PcapWriter
from emulator.p4switch.ports.port import Frames, PortInfo, Ports, Take, TakeBatch
from emulator.p4switch.ports.superframes import VIRTIO_BYTES
from switchml.errors import ConfigError
from switchml.net import libc, udp
from switchml.runtime.jit import compile_once

log = logging.getLogger("switchml.bmv2")

UDP_PREFIX = "udp:"
SOCKET_BYTES = 16 << 20

_NO_VIRTIO = bytes(VIRTIO_BYTES)
_POLL_MS = 500


class InterfacePort:
    """A port on a network interface. `io` is shared by the ports of a thread."""

    def __init__(self, number: int, interface: str, io: packet_io.PacketIO) -> None:
        self.number = number
        self.interface = interface
        self.socket = packet_io.new_socket(interface)
        self._ring = new_ring(self.socket)
        packet_io.attach(self.socket, interface)
        self._io = io
        self._state = Path("/sys/class/net", interface, "operstate")
        self.is_warm = False

    def warm(self) -> None:
        """Have compiled what the port needs."""
        if self._ring is None:
            compile_once(receive_frames, self._io, 0, 0, new_batch())
        else:
            compile_once(receive_ring, self._io, self._ring, 0, 0, new_batch())
        compile_once(send_frames, self._io, 0, 0, np.zeros((1, 4), np.int64), False)
        self.is_warm = True

    def is_up(self) -> bool:
        """Whether the interface is there and up."""
        try:
            return self._state.read_text().strip() in ("up", "unknown")
        except OSError:
            return False

    def receive(self, batch: Batch) -> int:
        """Fill a batch with what has arrived; returns how many frames."""
        if self._ring is not None:
            return receive_ring(self._io, self._ring, self.socket.fileno(), self.number, batch)
        return receive_frames(self._io, self.socket.fileno(), self.number, batch)

    def receive_plainly(self) -> Iterator[bytes]:
        """What has arrived, without kernels."""
        if self._ring is not None:
            yield from plain.receive_ring(self._ring, self.socket)
            return
        for _ in range(packet_io.MESSAGES):
            packets = plain.receive_message(self.socket)
            if packets is None:
                return
            yield from packets

    def send_records(self, records: np.ndarray, join: bool) -> None:
        """Send those of many records that are for this port."""
        send_frames(self._io, self.socket.fileno(), self.number, records, join)

    def send(self, data: bytes) -> None:
        """Send a frame; one that the kernel does not take is lost."""
        try:
            os.writev(self.socket.fileno(), (_NO_VIRTIO, data))
        except OSError as error:
            log.debug("Port %d: a frame of %d bytes was not sent: %s", self.number, len(data), error.strerror)


class UdpPort:
    """A port on a UDP socket."""

    def __init__(self, number: int, interface: str) -> None:
        self.number = number
        self.interface = interface
        here, _, there = interface.removeprefix(UDP_PREFIX).partition(",")
        self.peer = _endpoint(interface, there) if there else 0
        self._is_fixed = bool(there)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            libc.grow_buffers(self.socket, SOCKET_BYTES)
            self.socket.bind(udp.endpoint_text(_endpoint(interface, here)))
        except OSError as error:
            self.socket.close()
            raise ConfigError(f"can't open {interface!r}: {error.strerror or error}") from error
        self._io = udp.new_udp_io(self.socket)
        self._packets = udp.new_packets(packet_io.MOST_PACKETS)
        self.is_warm = False

    def warm(self) -> None:
        """Have compiled what the port needs."""
        compile_once(udp.receive_batch, self._io, self._packets)
        compile_once(udp.send_batch, self._io, self._packets, 0)
        self.is_warm = True

    def is_up(self) -> bool:
        """A socket is always up."""
        return True

    def receive(self, batch: Batch) -> int:
        """As InterfacePort's."""
        n = udp.receive_batch(self._io, self._packets)
        if n and not self._is_fixed:
            self.peer = int(self._packets.endpoint[n - 1])
        batch.port[:n] = self.number
        batch.address[:n] = self._packets.address[:n].view(np.int64)
        batch.length[:n] = self._packets.length[:n]
        return n

    def receive_plainly(self) -> Iterator[bytes]:
        """As InterfacePort's."""
        for _ in range(udp.RECEIVE_MESSAGES):
            try:
                data, control, _, address = self.socket.recvmsg(1 << 16, 64, socket.MSG_DONTWAIT)
            except OSError:  # nothing waits; or what was sent before could not be delivered
                return
            if not self._is_fixed:
                self.peer = udp.endpoint(*address)
            size = len(data)
            for *kind, told in control:
                if kind == [libc.SOL_UDP, libc.UDP_GRO]:
                    size = int.from_bytes(told, "little")
            yield from (data[at : at + size] for at in range(0, len(data), max(size, 1)))

    def send_records(self, records: np.ndarray, join: bool) -> None:
        """As InterfacePort's."""
        mine = records[records[:, 0] == self.number] if self.peer else records[:0]
        for start in range(0, len(mine), packet_io.MOST_PACKETS):
            part = mine[start : start + packet_io.MOST_PACKETS]
            n = len(part)
            self._packets.address[:n] = part[:, 1].view(np.uint64)
            self._packets.length[:n] = part[:, 2]
            self._packets.endpoint[:n] = self.peer
            udp.send_batch(self._io, self._packets, n)

    def send(self, data: bytes) -> None:
        """As InterfacePort's; nothing is sent before somebody sent something here."""
        if self.peer:
            try:
                self.socket.sendto(data, udp.endpoint_text(self.peer))
            except OSError as error:
                log.debug("Port %d: a frame of %d bytes was not sent: %s", self.number, len(data), error.strerror)


def _endpoint(interface: str, text: str) -> int:
    address, _, port = text.rpartition(":")
    try:
        if not port.isdigit() or not 0 <= int(port) < 1 << 16:
            raise ValueError(port)
        return udp.endpoint(socket.gethostbyname(address), int(port))
    except (OSError, ValueError):
        raise ConfigError(f"{interface!r}: {text!r} is not ADDRESS:PORT (IPv4)") from None


class LivePorts(Ports):
    """Interfaces and UDP sockets."""

    def __init__(self) -> None:
        self._io = new_packet_io()
        self._batch = new_batch()
        self._ports: dict[int, InterfacePort | UdpPort] = {}
        self._of_fd: dict[int, InterfacePort | UdpPort] = {}
        self._dumps: dict[int, tuple[PcapWriter, PcapWriter]] = {}
        self._poller = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.POLLIN)
        self._lock = threading.RLock()
        self._superframes = 0
        self._rounds = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, number: int, interface: str, pcap_dir: str | None = None) -> None:
        with self._lock:
            if number in self._ports:
                raise ConfigError(f"port {number} exists already: {self._ports[number].interface}")
            if interface.startswith(UDP_PREFIX):
                port = UdpPort(number, interface)
            else:
                port = InterfacePort(number, interface, self._io)
            if pcap_dir:
                name = interface.replace("/", "_")
                self._dumps[number] = tuple(PcapWriter(Path(pcap_dir, f"{name}_{way}.pcap")) for way in ("in", "out"))
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
            dumps = self._dumps.pop(number, ())
        # A socket stays open as long as a poll() that began before waits for it: end that first.
        if self._thread is not None and self._thread.is_alive():
            rounds = self._rounds
            os.eventfd_write(self._wake, 1)
            deadline = time.monotonic() + 1
            while self._rounds == rounds and time.monotonic() < deadline:
                time.sleep(0.001)
        port.socket.close()
        for dump in dumps:
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
                    port = self._of_fd.get(fd)
                    if port is not None:
                        self._serve_port(port, take, take_batch)

    @staticmethod
    def _warm(port: InterfacePort | UdpPort) -> None:
        def warm() -> None:
            port.warm()
            log.info("Port %d is served by compiled code from now on", port.number)

        threading.Thread(target=warm, name="warm", daemon=True).start()

    def _serve_port(self, port: InterfacePort | UdpPort, take: Take, take_batch: TakeBatch | None) -> None:
        if port.is_warm:
            n = port.receive(self._batch)
            if n:
                self._pass_on(take, take_batch, port.number, n)
            return
        for data in port.receive_plainly():
            if port.number in self._dumps:
                self._dumps[port.number][0].write(data)
            take([(port.number, data)])

    def _pass_on(self, take: Take, take_batch: TakeBatch | None, number: int, n: int) -> None:
        batch = self._batch
        if number in self._dumps:
            for at, length in zip(batch.address[:n].tolist(), batch.length[:n].tolist(), strict=True):
                self._dumps[number][0].write(ctypes.string_at(at, length))
        superframes = int(self._io.counts[packet_io.SUPERFRAMES])
        join, self._superframes = superframes > self._superframes, superframes
        if take_batch is not None and take_batch(batch, n, lambda records: self.send_records(records, join)):
            return
        places = zip(batch.address[:n].tolist(), batch.length[:n].tolist(), strict=True)
        take([(number, ctypes.string_at(at, length)) for at, length in places])

    def send_records(self, records: np.ndarray, join: bool) -> None:
        """Send frames by their addresses: int64[n, ≥ 3] of port, address, length. `join`: neighbours that belong
        together leave as superframes, which is for those who send superframes themselves: others would see odd
        packets."""
        for number, port in self._ports.items():
            if port.is_warm:
                port.send_records(records, join)
            else:
                for at, length in records[records[:, 0] == number, 1:3].tolist():
                    port.send(ctypes.string_at(at, length))
            if number in self._dumps:
                for at, length in records[records[:, 0] == number, 1:3].tolist():
                    self._dumps[number][1].write(ctypes.string_at(at, length))

    def send(self, frames: Frames) -> None:
        for number, data in frames:
            port = self._ports.get(number)
            if port is None:
                continue
            if number in self._dumps:
                self._dumps[number][1].write(data)
            port.send(data)

    def close(self) -> None:
        self._is_closed = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for number in list(self._ports):
            self.remove(number)
        os.close(self._wake)
