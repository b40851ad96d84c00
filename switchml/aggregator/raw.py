"""Protocol v1 directly on a network interface, for p4app-switchML's own hosts, whose frames the kernel does not deliver
to a UDP socket: its DPDK client reuses packets with IPv4 checksum 0, reads single frames only, and does not answer ARP.

`RawV1` has a packet socket for the interface and a thread that processes frames one by one: it answers ARP requests for
its address, accepts v1 packets at UDP ports 48864 to 48879 as the original's switch does (docs/protocol.md, section 1),
and sends each result as one frame to the MAC address that the host has registered. It is written for compatibility; the
compiled loop (loop.py) is several times faster.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

import psutil

from switchml import counters, logs
from switchml.aggregator.job_state import JobState
from switchml.control.dataplane import Address, JobCounters, JobSpec
from switchml.control.mac import parse_mac
from switchml.errors import ConfigError
from switchml.net import sockets, udp
from switchml.net.frames import Ends, headers
from switchml.net.sockets import ETH_P_IP
from switchml.protocol.packet import UDP_PORT, UDP_PORT_MASK
from switchml.protocol.pool import PoolV1

log = logs.of("switchml.aggregator")

_FRAME_BYTES = 2048
_BATCH = 64
"""Maximum number of frames processed before the other sources are polled."""
_MAX_HEADERS = 4096
"""Maximum number of cached headers: hosts choose their source ports, which must not exhaust memory."""
_ETH_P_ARP = 0x0806
_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ARP_IPV4, _REQUEST, _REPLY = (1, 0x0800, 6, 4), 1, 2
_AT_IPV4, _AT_UDP, _AT_DATA = 14, 34, 42


class Datagram(NamedTuple):
    """A UDP datagram in a frame. MAC and IPv4 addresses are bytes."""

    source_mac: bytes
    source: bytes
    target: bytes
    source_port: int
    port: int
    payload: bytes


def datagram_in(frame: bytes) -> Datagram | None:
    """The datagram in a frame; None for a frame that is not UDP over IPv4, has options, is a fragment or truncated, or
    has an IPv4 checksum that is neither correct nor 0 (the original's switch never checks it, and its client sends 0).
    """
    if len(frame) < _AT_DATA:
        return None
    _, source_mac, kind = _ETHERNET.unpack_from(frame)
    version, _, _, _, fragment, _, protocol, check, source, target = _IPV4.unpack_from(frame, _AT_IPV4)
    source_port, port, length, _ = _UDP.unpack_from(frame, _AT_UDP)
    if kind != ETH_P_IP or version != 0x45 or fragment & 0x3FFF or protocol != socket.IPPROTO_UDP:
        return None
    if not 8 <= length <= len(frame) - _AT_UDP or (check and not _is_sound(frame[_AT_IPV4:_AT_UDP])):
        return None
    return Datagram(source_mac, source, target, source_port, port, frame[_AT_DATA : _AT_UDP + length])


def _is_sound(header: bytes) -> bool:
    """Whether the checksum of an IPv4 header is correct (RFC 1071)."""
    return bool(sum(struct.unpack("!10H", header)) % 0xFFFF == 0)


class RawV1:
    """Sessions of protocol v1 on an interface: the part of `Dataplane` that threads.py delegates to it.

    `ip`, `mac`: the interface's addresses, which hosts are given. Raises ConfigError if there is no such interface, it
    lacks an address, or the process may not open packet sockets (root may).
    """

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self.ip, self.mac = _addresses_of(interface)
        self._own_ip, self._own_mac = socket.inet_aton(self.ip), self.mac.to_bytes(6, "big")
        self._udp = self._open()
        sockets.receive_only_udp(self._udp, UDP_PORT, UDP_PORT_MASK)
        sockets.attach(self._udp, interface, ETH_P_IP)
        try:
            self._arp = self._open()
            sockets.attach(self._arp, interface, _ETH_P_ARP)
        except ConfigError:
            self._udp.close()
            raise
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._jobs: dict[int, JobState] = {}
        self._macs: dict[tuple[int, int], int] = {}  # (job, rank)
        self._senders: dict[bytes, tuple[JobState, int]] = {}
        self._headers: dict[tuple[int, int, int, int, int], bytes] = {}
        self._refused = 0
        self._lock = threading.Lock()  # protects all of the above
        self._thread = threading.Thread(target=self._run, name="switchml-raw", daemon=True)

    def _open(self) -> socket.socket:
        sock = sockets.new_packet_socket(self.interface)
        sock.setsockopt(sockets.SOL_PACKET, sockets.VNET_HDR, 0)  # v1 packets are not sent as trains
        sock.setblocking(False)
        return sock

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop serving. May be called twice."""
        if self._wake < 0:
            return
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for sock in (self._udp, self._arp):
            sock.close()
        os.close(self._wake)
        self._wake = -1

    # Dataplane

    def start_job(self, spec: JobSpec) -> None:
        """Start a session. Raises ConfigError if an address belongs to another session."""
        state = JobState(spec, shared=False)
        with self._lock:
            self._jobs[spec.job_id] = state
        try:
            for rank, address in enumerate(spec.addresses):
                if address is not None:
                    self.set_address(spec.job_id, rank, address, spec.macs[rank] if spec.macs else 0)
        except ConfigError:
            self.stop_job(spec.job_id)
            raise

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Set a rank's address once it is known. Raises ConfigError if it is another's, KeyError for an unknown job."""
        key = socket.inet_aton(address[0])
        with self._lock:
            state = self._jobs[job_id]
            other = self._senders.get(key)
            if other is not None and other != (state, rank):
                raise ConfigError(f"address {address[0]} of rank {rank} belongs to rank {other[1]} of another session")
            self._senders = {ip: place for ip, place in self._senders.items() if place != (state, rank)}
            self._senders[key] = state, rank
            state.endpoints[rank] = udp.endpoint(*address)
            self._macs[job_id, rank] = mac
            self._headers.clear()

    def stop_job(self, job_id: int) -> None:
        with self._lock:
            state = self._jobs.pop(job_id, None)
            self._senders = {ip: place for ip, place in self._senders.items() if place[0] is not state}
            self._macs = {place: mac for place, mac in self._macs.items() if place[0] != job_id}
            self._headers.clear()

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job."""
        with self._lock:
            return self._jobs[job_id].count()

    def refused(self) -> dict[str, int]:
        return {"refused_address": self._refused}

    # The thread

    def _run(self) -> None:
        poll = select.poll()
        for source in (self._udp, self._arp, self._wake):
            poll.register(source, select.POLLIN)
        takes = {self._udp.fileno(): (self._udp, self._packet), self._arp.fileno(): (self._arp, self._asked)}
        while True:
            for number, _ in poll.poll():
                if number == self._wake:
                    return
                with self._lock:
                    self._take(*takes[number])

    def _take(self, sock: socket.socket, take: Callable[[bytes], None]) -> None:
        """Process the frames that have arrived."""
        for _ in range(_BATCH):
            try:
                take(sock.recv(_FRAME_BYTES))
            except BlockingIOError:
                return
            except OSError as error:  # the interface is down, and may come up again
                log.warning("interface %s: %s", self.interface, error.strerror or error)
                return

    def _asked(self, frame: bytes) -> None:
        """Answer an ARP request for this address (RFC 826)."""
        if len(frame) < _AT_IPV4 + _ARP.size:
            return
        *kind, op, mac, ip, _, target = _ARP.unpack_from(frame, _AT_IPV4)
        if tuple(kind) == _ARP_IPV4 and op == _REQUEST and target == self._own_ip:
            answer = _ARP.pack(*_ARP_IPV4, _REPLY, self._own_mac, self._own_ip, mac, ip)
            self._send(_ETHERNET.pack(mac, self._own_mac, _ETH_P_ARP) + answer)

    def _packet(self, frame: bytes) -> None:
        """Apply one packet, and send the resulting packets."""
        datagram = datagram_in(frame)
        if datagram is None or datagram.target != self._own_ip or frame[:6] != self._own_mac:
            return
        place = self._senders.get(datagram.source)
        if place is None:
            self._refused += 1
            return
        state, rank = place
        assert isinstance(state.pool, PoolV1)
        if not self._macs[state.spec.job_id, rank]:
            self._macs[state.spec.job_id, rank] = int.from_bytes(datagram.source_mac, "big")
        outcome = state.pool.receive(rank, datagram.payload)
        if outcome.packet is None:
            return
        receivers = range(state.spec.workers) if outcome.action == "multicast" else (rank,)
        for receiver in receivers:
            if state.endpoints[receiver]:  # otherwise this rank has not registered its address yet
                self._send(self._header(state, receiver, datagram, len(outcome.packet)) + outcome.packet)
                state.pool.counters[receiver][counters.SENT_PACKETS] += 1
                state.pool.counters[receiver][counters.SENT_BYTES] += len(outcome.packet)

    def _header(self, state: JobState, rank: int, request: Datagram, size: int) -> bytes:
        """Headers of a result: sent from the port that the request was sent to, to the port that it came from."""
        key = state.spec.job_id, rank, request.port, request.source_port, size
        if key not in self._headers:
            if len(self._headers) >= _MAX_HEADERS:
                self._headers.clear()
            ip, _ = udp.endpoint_text(int(state.endpoints[rank]))
            mac = self._macs[state.spec.job_id, rank]
            self._headers[key] = headers(Ends(self.mac, self.ip, request.port, mac, ip, request.source_port), size)
        return self._headers[key]

    def _send(self, frame: bytes) -> None:
        try:
            self._udp.send(frame)
        except OSError as error:  # lost; its receiver will request it again
            log.debug("%s", error)


def _addresses_of(interface: str) -> tuple[str, int]:
    """The IPv4 and the MAC address of an interface. Raises ConfigError."""
    known = psutil.net_if_addrs()
    if interface not in known:
        raise ConfigError(f"there is no interface {interface!r}; expected one of {', '.join(sorted(known))}")
    ip = next((item.address for item in known[interface] if item.family == socket.AF_INET), None)
    mac = next((parse_mac(item.address) for item in known[interface] if item.family == psutil.AF_LINK), 0)
    if ip is None or not mac:
        lacks = "IPv4" if ip is None else "MAC"
        raise ConfigError(f"interface {interface!r} has no {lacks} address, to which v1 hosts could send")
    return ip, mac
