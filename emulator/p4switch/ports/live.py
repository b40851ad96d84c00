"""Ports on network interfaces (AF_PACKET) or UDP sockets, all served by one thread.

A port's kernels are interpreted (interpreted.py) until they are compiled, by another thread on a machine's first start.
The switchover happens between two batches, so no frame is lost or reordered.

A UDP port, `udp:ADDRESS:PORT`, is a socket bound to that address; each datagram is one Ethernet frame. Any host that
can reach it may send, and outgoing frames are sent to the most recent sender. With `udp:ADDRESS:PORT,ADDRESS:PORT` the
second address is the port's peer: outgoing frames are sent there, and those of other senders are counted and ignored.
"""

import contextlib
import ctypes
import os
import queue
import select
import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from emulator.p4switch.ports.interpreted import Kernel
from emulator.p4switch.ports.pcap import PcapWriter
from emulator.p4switch.ports.port import Frames, PortInfo, Ports, Take, TakeBatch
from switchml import logs
from switchml.errors import ConfigError
from switchml.net import packet_io, sockets, udp
from switchml.net.packet_io import Batch, PacketIO, new_batch, new_packet_io, send_frames
from switchml.net.packet_ring import new_ring, receive_ring
from switchml.net.trains import MAX_PACKETS, VIRTIO_BYTES

log = logs.of("switchml.bmv2")

UDP_PREFIX = "udp:"
FOREIGN_SENDERS = "strangers"
"""Key in PortInfo.extra of the number of frames ignored because their sender is not the port's peer."""

_POLL_MS = 500
_CLOSING_S = 10.0
"""Time limit of `remove` for the serving thread to release a port."""


class LivePort(ABC):
    """A port with a socket. `is_warm`: whether its kernels are compiled. `dumps`: writers of received and sent frames,
    if any. `n_foreign_senders`: frames ignored because their sender is not the port's peer."""

    socket: socket.socket
    _receive: Kernel
    _send_batch: Kernel

    def __init__(self, number: int, interface: str) -> None:
        self.number = number
        self.interface = interface
        self.is_warm = False
        self.dumps: tuple[PcapWriter, PcapWriter] | None = None
        self.n_foreign_senders = 0

    def warm(self) -> None:
        self._receive.compile()
        self._send_batch.compile()
        self.is_warm = True

    def is_up(self) -> bool:
        """Whether frames can pass."""
        return True

    def descriptors(self) -> list[int]:
        """File descriptors to poll."""
        return [self.socket.fileno()]

    def recover(self) -> None:
        """Handle an event other than a frame. Called by the receiving thread."""
        sockets.take_error(self.socket)

    @abstractmethod
    def receive(self, batch: Batch) -> int:
        """Fill a batch with received frames. Returns their number."""

    @abstractmethod
    def send_batch(self, addresses: np.ndarray, lengths: np.ndarray, join: bool) -> None:
        """Send frames (int64[n] each); with `join`, related frames are sent as trains. A frame that the kernel rejects
        is lost. Called by the receiving thread."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a frame, from any thread. Raises OSError if the kernel rejects it."""

    def close(self) -> None:
        """Close the socket and the dumps. Called by the receiving thread, or if there is none."""
        self.socket.close()
        for dump in self.dumps or ():
            dump.close()

    def describe(self) -> PortInfo:
        extra = {FOREIGN_SENDERS: str(self.n_foreign_senders)} if self.n_foreign_senders else {}
        return PortInfo(self.number, self.interface, self.is_up(), extra)


class InterfacePort(LivePort):
    """A port on a network interface. `io` is shared by the ports of a thread.

    It follows changes of the interface: a new name or MTU, and, after removal, a new interface with the old name."""

    def __init__(self, number: int, interface: str, io: PacketIO) -> None:
        super().__init__(number, interface)
        if "\0" in interface:
            raise ConfigError(f"there is no interface {interface!r}")
        self.socket = sockets.new_packet_socket(interface)
        self.socket.setsockopt(sockets.SOL_PACKET, sockets.AUXDATA, 1)
        self._io, self._ring = io, new_ring(self.socket)
        sockets.attach(self.socket, interface, promiscuous=True)
        none = np.zeros(0, np.int64)
        self._receive = Kernel(receive_ring, io, self._ring, 0, new_batch())
        self._send_batch = Kernel(send_frames, io, 0, none, none, packet_io.APART)
        self._name = interface
        self._links: socket.socket | None = None
        with contextlib.suppress(OSError):  # a sandbox may have no netlink: then a removed interface stays lost
            self._links = sockets.watch_links()

    def is_up(self) -> bool:
        return sockets.is_running(self.socket)

    def descriptors(self) -> list[int]:
        return super().descriptors() + ([] if self._links is None else [self._links.fileno()])

    def recover(self) -> None:
        super().recover()
        if self._links is None:
            return
        sockets.drain(self._links)
        name = sockets.interface_of(self.socket)
        if name:
            self._name = name
            return
        for back in dict.fromkeys((self.interface, self._name)):
            with contextlib.suppress(OSError):
                sockets.reattach(self.socket, back, promiscuous=True)
                self._name = back
                log.info("Port %d: interface %s is back", self.number, back)
                return

    def close(self) -> None:
        super().close()
        if self._links is not None:
            self._links.close()

    def receive(self, batch: Batch) -> int:
        n: int = self._receive(self._io, self._ring, self.socket.fileno(), batch)
        batch.port[:n] = self.number
        return n

    def send_batch(self, addresses: np.ndarray, lengths: np.ndarray, join: bool) -> None:
        joining = packet_io.JOIN if join else packet_io.APART
        sockets.take_error(self.socket)  # otherwise it would fail the first frame
        self._send_batch(self._io, self.socket.fileno(), addresses, lengths, joining)

    def send(self, data: bytes) -> None:
        sockets.take_error(self.socket)
        os.writev(self.socket.fileno(), (bytes(VIRTIO_BYTES), data))


class UdpPort(LivePort):
    """A port on a UDP socket. Without a fixed peer, nothing is sent before a frame has been received."""

    def __init__(self, number: int, interface: str) -> None:
        super().__init__(number, interface)
        here, _, there = interface.removeprefix(UDP_PREFIX).partition(",")
        self.peer = _endpoint(interface, there) if there else 0
        self._owner = np.uint64(self.peer) if there else None  # the only allowed sender
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
        senders = self._packets.endpoint[:n]
        if self._owner is None:
            self.peer = int(senders[-1]) if n else self.peer
        elif np.count_nonzero(senders != self._owner):
            n = self._drop_strangers(n, self._owner)
        batch.port[:n] = self.number
        batch.address[:n] = self._packets.address[:n].view(np.int64)
        batch.length[:n] = self._packets.length[:n]
        return n

    def _drop_strangers(self, n: int, owner: np.uint64) -> int:
        """Keep those of the first `n` packets that were sent by the owner, and return their number. The others are
        counted; the first is logged."""
        is_owner = self._packets.endpoint[:n] == owner
        if not self.n_foreign_senders:
            first = self._packets.endpoint[np.argmin(is_owner)]
            sender, peer = ("{}:{}".format(*udp.endpoint_text(int(end))) for end in (first, owner))
            log.warning("Port %d: ignoring frames from %s; the port is that of %s", self.number, sender, peer)
        kept = np.flatnonzero(is_owner)
        self.n_foreign_senders += n - len(kept)
        for column in self._packets:
            column[: len(kept)] = column[kept]
        return len(kept)

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


def _dumps(pcap_dir: str, interface: str) -> tuple[PcapWriter, PcapWriter]:
    """Writers of the frames received and sent by an interface. Raises ConfigError."""
    folder, name = Path(pcap_dir), interface.replace("/", "_")
    incoming = PcapWriter(folder / f"{name}_in.pcap")
    try:
        return incoming, PcapWriter(folder / f"{name}_out.pcap")
    except ConfigError:
        incoming.close()
        raise


def _frames(addresses: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    """The bytes of frames, copied."""
    return [ctypes.string_at(at, length) for at, length in zip(addresses.tolist(), lengths.tolist(), strict=True)]


class LivePorts(Ports):
    """Live ports and the thread that serves them. The thread holds no lock while processing frames, so any thread may
    access ports while holding any lock: `_ports` and `_of_fd` are replaced, never modified. A removed port is closed by
    that thread."""

    def __init__(self) -> None:
        self._io = new_packet_io()
        self._batch = new_batch()
        self._ports: dict[int, LivePort] = {}
        self._of_fd: dict[int, LivePort] = {}
        self._poller = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.POLLIN)
        self._lock = threading.Lock()  # serializes add and remove
        self._removed: queue.SimpleQueue[tuple[LivePort, threading.Event]] = queue.SimpleQueue()
        self._trains = 0
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
                try:
                    port.dumps = _dumps(pcap_dir, interface)
                except ConfigError:
                    port.close()
                    raise
            self._ports = {**self._ports, number: port}
            self._of_fd = {**self._of_fd, **dict.fromkeys(port.descriptors(), port)}
            for fd in port.descriptors():
                self._poller.register(fd, select.POLLIN)
            os.eventfd_write(self._wake, 1)  # a poll() in progress does not include it
            if self._thread is not None:
                self._warm(port)

    def remove(self, number: int) -> None:
        with self._lock:
            if number not in self._ports:
                raise ConfigError(f"there is no port {number}")
            port = self._ports[number]
            for fd in port.descriptors():
                self._poller.unregister(fd)
            self._ports = {other: kept for other, kept in self._ports.items() if kept is not port}
            self._of_fd = {fd: kept for fd, kept in self._of_fd.items() if kept is not port}
        if self._thread is None or not self._thread.is_alive():
            port.close()
            return
        closed = threading.Event()
        self._removed.put((port, closed))
        os.eventfd_write(self._wake, 1)
        closed.wait(_CLOSING_S)

    def show(self) -> list[PortInfo]:
        return [port.describe() for _, port in sorted(self._ports.items())]

    def start(self, take: Take, take_batch: TakeBatch) -> None:
        self._thread = threading.Thread(target=self._serve, args=(take_batch,), name="ports", daemon=True)
        self._thread.start()

    def _serve(self, take_batch: TakeBatch) -> None:
        for port in list(self._ports.values()):
            self._warm(port)
        while not self._is_closed:
            ready = self._poller.poll(_POLL_MS)
            for fd, events in ready:
                served = self._of_fd.get(fd)
                if fd == self._wake:
                    os.eventfd_read(fd)
                elif served is not None:
                    is_frame = fd == served.socket.fileno() and not events & select.POLLERR
                    self._try_to_serve(served, take_batch, is_frame)
            self._close_removed()
        self._close_removed()

    def _close_removed(self) -> None:
        while not self._removed.empty():
            port, closed = self._removed.get()
            port.close()
            closed.set()

    @staticmethod
    def _warm(port: LivePort) -> None:
        def warm() -> None:
            port.warm()
            log.info("Port %d is served by compiled code from now on", port.number)

        threading.Thread(target=warm, name="warm", daemon=True).start()

    def _try_to_serve(self, port: LivePort, take_batch: TakeBatch, is_frame: bool) -> None:
        try:
            if not is_frame:
                port.recover()
            self._serve_port(port, take_batch)
        except Exception:  # continue with the other frames and ports
            log.exception("Dropping frames of port %d", port.number)

    def _serve_port(self, port: LivePort, take_batch: TakeBatch) -> None:
        n = port.receive(self._batch)
        if not n:
            return
        trains = int(self._io.counts[packet_io.TRAINS])
        join, self._trains = trains > self._trains, trains
        if port.dumps is not None:
            port.dumps[0].write(*_frames(self._batch.address[:n], self._batch.length[:n]))
        take_batch(self._batch, n, lambda records: self.send_records(records, join))

    def send_records(self, records: np.ndarray, join: bool) -> None:
        """Send frames by their addresses: int64[n, ≥ 3] of port, address, length. `join`: consecutive related frames
        are sent as trains; only for senders that send trains themselves, as others would receive unexpected packets."""
        for number, port in self._ports.items():
            mine = records[:, 0] == number
            addresses, lengths = records[mine, 1], records[mine, 2]
            if not len(addresses):
                continue
            if port.dumps is not None:
                port.dumps[1].write(*_frames(addresses, lengths))
            port.send_batch(addresses, lengths, join)

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
        self._close_removed()  # ports removed while the thread ended
        os.close(self._wake)
