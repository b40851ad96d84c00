"""Communication in a Kineto trace: its events, bytes, groups and sequence numbers. Communication kernels
(`communication_kernels.py`) run on a device stream. NCCL's and RCCL's operations are described in their arguments
(since torch 2.3), or around their launch: in `record_param_comms`, `nccl:all_reduce` or `c10d::allreduce_`. Gloo and
other host backends work on their own threads, within an annotation such as `gloo:all_reduce`, caused by
`c10d::allreduce_` on the caller's. With an accelerator's tensors it also covers copies (`staging.py`).
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.communication import collective_of, count, item_bytes, message_bytes, whole
from emulator.traces.communication_kernels import family_of
from emulator.traces.events import NONE, Group, LaneKind, What
from emulator.traces.limits import check_ranks
from emulator.traces.readers.kineto.events import BY_DEVICE, BY_HOST, C10D, Args
from emulator.traces.readers.kineto.reading import Reading
from emulator.traces.readers.sizes import CollectiveSize, Request, Sizes, match
from emulator.traces.readers.tables import occurrences

THREADS = 4
"""Maximum number of waiting communications that a host backend's threads may start in any order (Gloo has two threads).
"""


@dataclass
class Communication:
    """Communication of a trace, beyond the event columns."""

    launch: dict[int, int] = field(default_factory=dict)
    """Communication → the host event that launched it, if known."""
    groups: list[Group] = field(default_factory=list)
    backend: str = ""
    unnamed: int = 0
    """Number of collectives without a group although there are several; they are assigned to the largest."""


def find_communication(reading: Reading) -> Communication:
    """Find all communication of a trace, and fill in the columns of its events."""
    result, groups, events = Communication(), _Groups(reading), reading.events
    for event, descriptions in [*_on_devices(reading, result), *_on_host(reading, result)]:
        kind = next((kind for each in descriptions if (kind := each.collective)), Collective.NONE)
        if not kind:
            continue
        named = next((each.args for each in descriptions if each.args.group is not None), None)
        result.unnamed += named is None and len(groups.groups) > 1
        events.group[event] = groups.number(named or Args())
        ranks = groups.groups[events.group[event]].ranks
        events.collective[event] = kind
        events.bytes[event] = _bytes(kind, descriptions, len(ranks))
        events.what[event] = What.COLLECTIVE
        if kind == Collective.P2P:
            sends = next((each.sends for each in descriptions if each.sends is not None), True)
            events.what[event] = What.SEND if sends else What.RECV
            events.peer[event] = _peer(sends, descriptions, ranks)
    result.groups = groups.groups
    # Numbered in the order in which the host launched them.
    numbered = np.flatnonzero(events.collective)
    launched_s = [events.start_s[result.launch.get(event, event)] for event in numbered.tolist()]
    numbered = numbered[np.argsort(launched_s, kind="stable")]
    keys = (column[numbered].tolist() for column in (events.group, events.what, events.peer))
    events.sequence[numbered] = occurrences(zip(*keys, strict=True))
    return result


class _Description:
    """Description of a communication by one event: a kernel itself, or an annotation or operator around its launch."""

    def __init__(self, name: str, args: Args | None) -> None:
        self.args = args or Args()
        self.name = name
        operation = str(self.args.collective) if self.args.collective is not None else ""
        if not operation:
            match = BY_HOST.match(name) or BY_DEVICE.match(name) or C10D.match(name)
            operation = match[match.lastindex or 0] if match else ""
        self.collective = collective_of(operation)
        if not operation and (family := family_of(name)) is not None:
            self.collective = family.collective_of(name)
        self.sends = "send" in operation.lower() if self.collective == Collective.P2P else None

    def sizes(self) -> tuple[float, float]:
        """Return input and output bytes, 0 if unknown."""
        args = self.args
        if args.sent is not None or args.received is not None:
            item = item_bytes(str(args.dtype))
            return whole(args.sent) * item, whole(args.received) * item
        if not args.dims or not args.types:
            return 0.0, 0.0
        if self.name.startswith("c10d::"):
            # Lists of tensors have no type in the profile; they are assumed to be float32.
            return float(max((4 * count(shape) for shape in args.dims), default=0)), 0.0
        pairs = zip(args.dims, args.types, strict=False)
        return float(sum(count(shape) * item_bytes(str(kind)) for shape, kind in pairs)), 0.0

    def elements(self) -> int:
        """Return the elements of the largest tensor; 0 if unknown."""
        return max((int(count(shape)) for shape in self.args.dims or []), default=0)


def _described(reading: Reading, event: int) -> _Description:
    return _Description(reading.name(event), reading.details.get(event))


def _on_devices(reading: Reading, communication: Communication) -> list[tuple[int, list[_Description]]]:
    """Return communication kernels with their descriptions, the most reliable first."""
    result = []
    for event in reading.where(lambda category, name: category == "kernel" and family_of(name)).tolist():
        itself, around = _described(reading, event), []
        if reading.launch_of[event] != NONE:
            communication.launch[event] = int(reading.launch_of[event])
            outer = reading.events.around(communication.launch[event])
            around = [_described(reading, one) for one in outer if one in reading.details]
        if itself.args.collective is None:
            around.sort(key=lambda one: (one.args.collective is None, one.name.startswith("c10d::")))
            descriptions = [*(one for one in around if one.collective), itself]
        else:
            descriptions = [itself, *around]
        family = family_of(itself.name)
        communication.backend = communication.backend or (family.library if family else "")
        result.append((event, descriptions))
    return result


def _on_host(reading: Reading, communication: Communication) -> list[tuple[int, list[_Description]]]:
    """Return a host backend's annotations with the calls that caused them; sizes from outside the profile take
    precedence."""
    events = reading.events
    works = reading.where(lambda _, name: BY_HOST.match(name))
    if not len(works):
        return []
    backends = (named[1] for _, name in reading.kinds if (named := BY_HOST.match(name)))
    communication.backend = communication.backend or next(backends)
    caller_of = _callers(reading, works)
    result, requests = [], []
    for event in works.tolist():
        descriptions = [_described(reading, event)]
        from_s, until_s = 0.0, events.start_s[event]
        caller = caller_of.get(event, NONE)
        if caller != NONE and events.start_s[caller] <= events.start_s[event] + 1e-6:
            call = _described(reading, caller)
            if call.collective == descriptions[0].collective:
                descriptions.append(call)
                communication.launch[event] = caller
                from_s, until_s = events.start_s[caller], events.start_s[caller] + events.duration_s[caller]
                if reading.lanes[events.lane[event]].kind == LaneKind.TRANSPORT:
                    events.what[caller] = What.LAUNCH
        result.append((event, descriptions))
        requests.append(Request(event, descriptions[0].name, reading.unix_ns(from_s), reading.unix_ns(until_s)))
    if reading.sizes is not None:
        calls = match(reading.sizes.calls, requests)
        for event, descriptions in result:
            if event in calls:
                descriptions.insert(0, _Description(descriptions[0].name, profiler_args(reading.sizes, calls[event])))
    return result


def _callers(reading: Reading, works: np.ndarray) -> dict[int, int]:
    """Return work → the c10d operator that started it, which has the next lower record number: its own number is drawn
    first, then, while it runs, its work's. Without an observed execution trace all numbers are 0: then the first call
    of a kind is matched with its first work, and so on."""
    callers = reading.where(lambda _, name: C10D.match(name))
    callers = callers[np.argsort(reading.record[callers], kind="stable")]
    before = np.searchsorted(reading.record[callers], reading.record[works]) - 1
    has_one = (before >= 0) & (reading.record[works] > 0)
    numbered = dict(zip(works[has_one].tolist(), callers[before[has_one]].tolist(), strict=True))
    return numbered | _in_order(reading, *(these[reading.record[these] == 0] for these in (works, callers)))


def profiler_args(sizes: Sizes, call: CollectiveSize) -> Args:
    """Convert `call` to the profiler's arguments."""
    sent, received = call.bytes()
    ranks = sizes.groups.get(call.group)
    group: dict[str, Any] = {"group_ranks": ranks, "group_size": len(ranks)} if ranks else {}
    return Args(
        sent=sent, received=received, dtype="byte", group=call.group, source=call.peer, destination=call.peer, **group
    )


def _in_order(reading: Reading, events: np.ndarray, callers: np.ndarray) -> dict[int, int]:
    """Match events with callers in order within each collective. A backend with several threads may start two waiting
    calls in any order, so one of equal size is preferred among those that may have been overtaken."""
    waiting: dict[Collective, list[tuple[int, int]]] = {}
    start_s = reading.events.start_s
    for caller in callers[np.argsort(start_s[callers], kind="stable")].tolist():
        description = _described(reading, caller)
        waiting.setdefault(description.collective, []).append((caller, description.elements()))
    caller_of = {}
    for event in events[np.argsort(start_s[events], kind="stable")].tolist():
        description = _described(reading, event)
        calls = waiting.get(description.collective, [])
        may_be = [call for call in calls[:THREADS] if start_s[call[0]] <= start_s[event] + 1e-6]
        alike = [call for call in may_be if call[1] == description.elements()]
        if may_be:
            caller_of[event] = (alike or may_be)[0][0]
            calls.remove((alike or may_be)[0])
    return caller_of


def _bytes(kind: Collective, descriptions: list[_Description], ranks: int) -> float:
    for description in descriptions:
        sent, received = description.sizes()
        if sent or received:
            return message_bytes(kind, sent, received, ranks)
    return 0.0


def _peer(sends: bool, descriptions: list[_Description], ranks: tuple[int, ...]) -> int:
    """Return the peer of a send or receive; c10d numbers it within the group."""
    for description in descriptions:
        other = description.args.destination if sends else description.args.source
        if other is not None:
            return whole(other, NONE)
        concrete = description.args.concrete
        if description.name.startswith("c10d::") and isinstance(concrete, list) and len(concrete) > 2:
            place = str(concrete[2])
            if place.isdigit() and int(place) < len(ranks):
                return ranks[int(place)]
    return NONE


class _Groups:
    """Communicators in order of appearance. Those in the file's header are known from the start."""

    def __init__(self, reading: Reading) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[str, int] = {}
        self._rank = reading.rank
        self._path, self._listed = reading.path, 0
        self._world = tuple(range(reading.world_size))
        configured = reading.distributed.get("pg_config") or []
        if isinstance(configured, str):
            configured = json.loads(configured)
        for group in configured:
            if isinstance(group, dict):
                ranks = _ranks(group.get("ranks"), whole(group.get("pg_size"))) or self._world
                self._add(str(group.get("pg_name", "")), ranks)

    def _add(self, name: str, ranks: tuple[int, ...]) -> int:
        if name not in self._numbers:
            self._listed += len(ranks) if ranks is not self._world else 0
            check_ranks(f"{self._path}: its groups together", self._listed)
            self._numbers[name] = len(self.groups)
            self.groups.append(Group(name, ranks))
        return self._numbers[name]

    def number(self, args: Args) -> int:
        """Return the number of the group in `args`, or of the default group of all ranks."""
        if args.group is not None:
            name = str(args.group)
            if name in self._numbers:
                return self._numbers[name]
            size = check_ranks(self._path, whole(args.group_size))
            ranks = _ranks(args.group_ranks, size)
            if not ranks and args.group_start is not None and size:
                ranks = tuple(whole(args.group_start) + i * whole(args.group_stride, 1) for i in range(size))
            return self._add(name, ranks or self._world or (self._rank,))
        widest = max(range(len(self.groups)), key=lambda at: len(self.groups[at].ranks), default=None)
        return self._add("", self._world or (self._rank,)) if widest is None else widest


def _ranks(listed: Any, size: int) -> tuple[int, ...]:
    """Parse ranks from a list or its text; empty if profilers have shortened it with an ellipsis."""
    if isinstance(listed, str):
        listed = [int(number) for number in re.findall(r"\d+", listed)] if "..." not in listed else []
    if not isinstance(listed, list) or not all(str(one).isdigit() for one in listed) or (size and len(listed) != size):
        return ()
    return tuple(int(one) for one in listed)
