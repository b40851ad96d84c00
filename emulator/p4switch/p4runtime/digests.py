"""Digests: their configuration (section "DigestEntry"), and sending and acknowledging digest lists."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emulator.p4switch.p4runtime.errors import DELETE, INSERT, check_presence, rpc_error
from emulator.p4switch.p4runtime.fields import encode_data
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.state.digests import Digest, DigestList
from switchml.control.p4runtime_protos import info, v1

NS_PER_MS = 1_000_000
NO_LIMIT = 1 << 16
"""Maximum samples in a list when the controller sets no limit."""


@dataclass
class Enabled:
    """An enabled digest. `waiting`: (list id, time in ns) of unacknowledged lists, the oldest first."""

    item: info.Digest
    digests: DigestList
    listener: Callable[[Digest], None]
    config: v1.DigestEntry.Config = field(default_factory=v1.DigestEntry.Config)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)


class Digests:
    """Handles requests for digests."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.enabled: dict[int, Enabled] = {}

    def write(self, kind: int, entry: v1.DigestEntry) -> None:
        item, digests = self.pipeline.one(self.pipeline.digests, entry.digest_id, "digest")
        name, number = digests.list.name, entry.digest_id
        check_presence(kind, number in self.enabled, f"enabled digest {name}")
        if kind == DELETE:
            digests.listeners.remove(self.enabled.pop(number).listener)
            return
        config = entry.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise rpc_error("INVALID_ARGUMENT", f"digest {name}: times and sizes can't be negative")
        if kind == INSERT:
            digests.reset()
            self.enabled[number] = Enabled(item, digests, lambda digest: self._send(number, digest))
            digests.listeners.append(self.enabled[number].listener)
        self.enabled[number].config.CopyFrom(config)
        digests.set_timeout(-(-config.max_timeout_ns // NS_PER_MS))
        digests.set_max_samples((config.max_list_size or NO_LIMIT) if config.max_timeout_ns else 1)

    def read(self, pattern: v1.DigestEntry) -> Iterator[v1.Entity]:
        self.pipeline.pick(self.pipeline.digests, pattern.digest_id, "digest")
        for number, digest in sorted(self.enabled.items()):
            if pattern.digest_id in (0, number):
                yield v1.Entity(digest_entry={"digest_id": number, "config": digest.config})

    def _send(self, number: int, digest: Digest) -> None:
        """Send a digest list. Called under the switch's lock during packet processing."""
        enabled = self.enabled[number]
        types = self.pipeline.p4info.type_info
        data = [encode_data(enabled.item.type_spec, types, iter(sample)) for sample in digest.samples]
        message = {"digest_id": number, "list_id": digest.buffer_id + 1, "data": data, "timestamp": time.time_ns()}
        self.pipeline.notify(v1.StreamMessageResponse(digest=message))
        if enabled.config.ack_timeout_ns:
            enabled.waiting.append((digest.buffer_id, time.monotonic_ns()))
        else:
            enabled.digests.acknowledge(digest.buffer_id)

    def acknowledge(self, message: v1.DigestListAck) -> None:
        """Handle an acknowledgement (section "Digest Messages")."""
        enabled = self.enabled.get(message.digest_id)
        if enabled is None:
            raise rpc_error("INVALID_ARGUMENT", f"there is no digest {message.digest_id:#x} that is enabled")
        with self.pipeline.state.lock:
            enabled.waiting = deque(item for item in enabled.waiting if item[0] != message.list_id - 1)
            enabled.digests.acknowledge(message.list_id - 1)

    def expire(self) -> None:
        """Release samples for resending if their acknowledgement did not arrive in time."""
        now = time.monotonic_ns()
        with self.pipeline.state.lock:
            for enabled in self.enabled.values():
                while enabled.waiting and now - enabled.waiting[0][1] >= enabled.config.ack_timeout_ns:
                    enabled.digests.acknowledge(enabled.waiting.popleft()[0])
