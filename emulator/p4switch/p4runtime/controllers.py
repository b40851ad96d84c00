"""Controllers, and the selection of the primary (section "Client Arbitration and Controller Replication").

A controller is a stream that has sent an arbitration message. The primary of a role is the controller that sent the
highest election id seen for the role so far; when it disconnects, there is no primary until another controller sends an
id at least as high.
"""

import queue
import threading
from dataclasses import dataclass

from emulator.p4switch.p4runtime.errors import rpc_error
from switchml import logs
from switchml.control.p4runtime_protos import v1

log = logs.of("switchml.bmv2")

MAX_STREAMS = 64
"""Maximum number of concurrent controllers."""
MAX_WAITING = 4096
"""Maximum number of messages queued for a controller; further packets and digests are lost."""

OK, NOT_FOUND, ALREADY_EXISTS = 0, 5, 6


class Stream:
    """A controller's stream: `messages` are sent in order, None ends the stream, with `error`, if any. `election_id` is
    None while the controller has none; `role` is None before its first arbitration."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[v1.StreamMessageResponse | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self.role: str | None = None
        self.election_id: int | None = None

    def send(self, message: v1.StreamMessageResponse) -> None:
        """Queue a message, unless the queue is full."""
        if self.messages.qsize() < MAX_WAITING:
            self.messages.put(message)

    def close(self, error: Exception | None = None) -> None:
        """End the stream."""
        self.error = self.error or error
        self.messages.put(None)


@dataclass
class Role:
    """A role. `highest`: the highest election id seen so far; `primary`: the current primary."""

    highest: int | None = None
    primary: Stream | None = None


def election_id_of(message: v1.MasterArbitrationUpdate | v1.WriteRequest) -> int | None:
    """The election id in a message, as one number; None if there is none."""
    if not message.HasField("election_id"):
        return None
    high, low = int(message.election_id.high), int(message.election_id.low)
    return high << 64 | low


class Controllers:
    """All controllers of the device `device_id`."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._lock = threading.RLock()
        self._streams: list[Stream] = []
        self._roles: dict[str, Role] = {}

    def add(self, stream: Stream) -> None:
        """Add a new stream. Raises RESOURCE_EXHAUSTED."""
        with self._lock:
            if len(self._streams) >= MAX_STREAMS:
                raise rpc_error("RESOURCE_EXHAUSTED", f"there can't be more than {MAX_STREAMS} controllers")
            self._streams.append(stream)

    def remove(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            if stream not in self._streams:
                return
            self._streams.remove(stream)
            name = stream.role
            if name is not None and self.is_primary(stream):
                self._roles[name].primary = None
                self._notify_all(name)

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            for stream in self._streams:
                stream.close()

    def is_primary(self, stream: Stream) -> bool:
        """Whether a stream belongs to a primary controller."""
        with self._lock:
            return any(role.primary is stream for role in self._roles.values())

    def check_primary(self, request: v1.WriteRequest | v1.SetForwardingPipelineConfigRequest) -> None:
        """Reject a request that is not from its role's primary. Raises PERMISSION_DENIED, or NOT_FOUND for an unknown
        role."""
        with self._lock:
            name, election_id = _role_name(request.role, request.role_id), election_id_of(request)
            role = self._roles.get(name)
            if role is None and name:
                raise rpc_error("NOT_FOUND", f"no controller has the role {name!r}")
            if role is None or role.primary is None:
                raise rpc_error(
                    "PERMISSION_DENIED", "there is no primary controller; send an arbitration message first"
                )
            if role.primary.election_id != election_id:
                raise rpc_error("PERMISSION_DENIED", f"{election_id} is not the election id of the primary controller")

    def arbitrate(self, stream: Stream, message: v1.MasterArbitrationUpdate) -> None:
        """Handle an arbitration message (section "Rules for Handling MasterArbitrationUpdate Messages"). Raises the
        error that ends the stream."""
        name, election_id = _role_name(message.role.name, message.role.id), election_id_of(message)
        with self._lock:
            if stream.role is None and message.device_id != self.device_id:
                raise rpc_error("NOT_FOUND", f"there is no device {message.device_id}, this is {self.device_id}")
            if message.device_id != self.device_id:
                raise rpc_error("FAILED_PRECONDITION", f"the stream is for device {self.device_id}")
            if stream.role is not None and name != stream.role:
                raise rpc_error("FAILED_PRECONDITION", f"the stream has the role {stream.role!r}, not {name!r}")
            if message.role.HasField("config"):
                raise rpc_error("INVALID_ARGUMENT", "roles have no configuration here: each may do everything")
            same = [other for other in self._streams if other is not stream and other.role == name]
            if election_id is not None and any(other.election_id == election_id for other in same):
                raise rpc_error("INVALID_ARGUMENT", f"another controller has the election id {election_id}")
            stream.role, stream.election_id = name, election_id
            role = self._roles.setdefault(name, Role())
            if election_id is not None and (role.highest is None or election_id >= role.highest):
                role.highest, role.primary = election_id, stream
                log.debug("P4Runtime: election id %d is primary%s", election_id, f" for role {name}" if name else "")
                self._notify_all(name)
            elif role.primary is stream:
                role.primary = None
                self._notify_all(name)
            else:
                self._notify(stream, name)

    def to_primaries(self, message: v1.StreamMessageResponse) -> None:
        """Send a message to the primary controllers of all roles."""
        with self._lock:
            for role in self._roles.values():
                if role.primary is not None:
                    role.primary.send(message)

    def _notify_all(self, name: str) -> None:
        """Notify all controllers of a role; the primary is notified last, as it may write from then on."""
        primary = self._roles[name].primary
        for stream in sorted((stream for stream in self._streams if stream.role == name), key=lambda s: s is primary):
            self._notify(stream, name)

    def _notify(self, stream: Stream, name: str) -> None:
        """Notify a controller (section "Client Arbitration Notifications")."""
        role = self._roles[name]
        message = v1.StreamMessageResponse()
        update = message.arbitration
        update.device_id = self.device_id
        if name:
            update.role.name = name
        if role.highest is not None:
            update.election_id.high, update.election_id.low = role.highest >> 64, role.highest & (2**64 - 1)
        if role.primary is stream:
            update.status.code, update.status.message = OK, "you are primary"
        elif role.primary is not None:
            update.status.code, update.status.message = ALREADY_EXISTS, "another controller is primary"
        else:
            update.status.code, update.status.message = NOT_FOUND, "no controller is primary"
        stream.messages.put(message)


def _role_name(name: str, number: int) -> str:
    """Name of a role, or its number as used by older versions; "" is the default role."""
    return name or (str(number) if number else "")
