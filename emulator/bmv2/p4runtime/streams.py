"""Controllers and which of them may write (section 5): the one with the highest election id of its role is primary."""

from __future__ import annotations

import queue
import threading
from typing import Any

from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import Code, Refused, invalid

OK, ALREADY_EXISTS, NOT_FOUND = 0, 6, 5
"""Numbers in google.rpc.Status."""


class Stream:
    """One controller's StreamChannel. `outgoing` holds what it is to be told, None at its end."""

    def __init__(self) -> None:
        self.outgoing: queue.SimpleQueue = queue.SimpleQueue()
        self.role = ""
        self.election_id: int | None = None

    def tell(self, **content: Any) -> None:
        """Send a StreamMessageResponse."""
        self.outgoing.put(messages().StreamMessageResponse(**content))


def election_id(message: Any) -> int | None:
    """The number in a Uint128 field `election_id`, or None if it is not set."""
    if not message.HasField("election_id"):
        return None
    return message.election_id.high << 64 | message.election_id.low


class Arbiter:
    """All streams to one device."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._streams: list[Stream] = []
        self._highest: dict[str, int] = {}
        self._lock = threading.RLock()

    def check_device(self, device_id: int) -> None:
        """Raises NOT_FOUND for another device."""
        if device_id != self.device_id:
            raise Refused(Code.NOT_FOUND, f"there is no device {device_id}, but {self.device_id}")

    def arbitrate(self, stream: Stream, update: Any) -> None:
        """A controller says who it is, and all of its role are told who is primary now."""
        self.check_device(update.device_id)
        with self._lock:
            role, number = update.role.name, election_id(update)
            if number == 0:
                raise invalid("an election id must not be 0")
            for other in self._streams:
                if other is not stream and other.role == role and number is not None and other.election_id == number:
                    raise invalid(f"election id {number} is taken")
            if stream not in self._streams:
                self._streams.append(stream)
            elif stream.role != role:
                raise Refused(Code.FAILED_PRECONDITION, "a controller can't change its role")
            was = self.primary(role)
            stream.role, stream.election_id = role, number
            if number is not None:
                self._highest[role] = max(self._highest.get(role, 0), number)
            self._announce(role, None if self.primary(role) is not was else stream)

    def leave(self, stream: Stream) -> None:
        """A controller went away."""
        with self._lock:
            if stream in self._streams:
                was_primary = self.primary(stream.role) is stream
                self._streams.remove(stream)
                if was_primary:
                    self._announce(stream.role, None)

    def primary(self, role: str = "") -> Stream | None:
        """The stream with the highest election id that the role ever had, if it is still there (section 5.3)."""
        with self._lock:
            for stream in self._streams:
                if stream.role == role and stream.election_id == self._highest.get(role, -1):
                    return stream
            return None

    def _announce(self, role: str, only: Stream | None) -> None:
        """Tell `only`, or all of a role, who is primary."""
        primary, m = self.primary(role), messages()
        for stream in self._streams:
            if stream.role != role or only not in (None, stream):
                continue
            if primary is None:
                status = m.Status(code=NOT_FOUND, message="there is no primary")
            elif stream is primary:
                status = m.Status(code=OK, message="you are primary")
            else:
                status = m.Status(code=ALREADY_EXISTS, message="you are a backup")
            told = m.MasterArbitrationUpdate(device_id=self.device_id, status=status)
            if role:
                told.role.name = role
            highest = self._highest.get(role, 0)
            if highest:
                told.election_id.high, told.election_id.low = highest >> 64, highest & (1 << 64) - 1
            stream.tell(arbitration=told)

    def check_primary(self, request: Any) -> None:
        """Only the primary may write (section 12.1)."""
        self.check_device(request.device_id)
        primary = self.primary(request.role)
        if primary is None or primary.election_id != election_id(request):
            raise Refused(Code.PERMISSION_DENIED, "only the primary controller may do this")

    def tell_primaries(self, **content: Any) -> None:
        """Send a message to the primary of each role."""
        with self._lock:
            for role in {stream.role for stream in self._streams}:
                if (primary := self.primary(role)) is not None:
                    primary.tell(**content)
