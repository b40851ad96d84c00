"""Predicts what torch.compile makes of an iteration, from an eager recording: fewer kernels, which read and write less,
and tensors that never exist.

The rules are defaults of Inductor and its partitioner, as described by their authors (Ansel et al., "PyTorch 2", ASPLOS
2024, sections 4.4 and 5). GEMMs, convolutions, attention, sorts and scatters remain separate kernels. Element-wise
operators and reductions join the kernel that produces their inputs, if they iterate over the same elements and nothing
between the two waits for that kernel. A fused kernel reads each tensor once and writes only tensors that other kernels
read. Tensors that only the backward pass reads are recomputed there, if that takes only element-wise operators on
existing tensors; results of reductions are saved, as they are small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from emulator.peers.script.costs import Costs
from emulator.peers.script.operators import Operator

MAX_FUSED = 64
"""Maximum operators per kernel (`max_fusion_size` of torch/_inductor/config.py)."""

_APART = (
    "sort",
    "topk",
    "index_put",
    "scatter",
    "embedding_dense_backward",
    "cum",
    "_fused_ad",
    "_fused_sgd",
    "_foreach_",
)
"""Name prefixes of operators that are not fused, in addition to those costed by shape and all that are not PyTorch's
own: collectives, extensions."""

_SAME = ("_unsafe_view", "lift_fresh", "_reshape_alias")
"""Operators whose result is their argument, although their schema does not say so."""

_NEVER = 1 << 62

Segment = tuple[int, bool]
"""A call of compiled code, by number, and whether this is its backward pass."""


@dataclass
class Launch:
    """An operator of an iteration. `storages`: of its inputs, by number; None: on the host. `made`: new storages of its
    results. `segment`: None: not compiled."""

    operator: Operator
    segment: Segment | None
    storages: tuple[int | None, ...]
    made: list[int] = field(default_factory=list)


@dataclass
class Recording:
    """A recorded iteration. `freed`: number of launches before a storage was freed; `shared`: storages used by
    collectives."""

    launches: list[Launch] = field(default_factory=list)
    freed: dict[int, int] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Step:
    """Replacement of an operator: the kernel that begins with it, or nothing (`seconds` 0). `operator`: number of the
    operator after which the kernel is named."""

    seconds: float
    operator: int


@dataclass(frozen=True)
class Plan:
    """Kernels of a compiled iteration. `operators`: of the iteration; `steps`: replacement of each, None: not compiled.
    `absent`: (launch, index of the new storage) of tensors that no kernel writes."""

    operators: list[Operator]
    steps: list[Step | None]
    absent: set[tuple[int, int]]
    until: dict[tuple[int, int], int]
    """First launch at which a tensor that is read again may be freed."""


@dataclass(eq=False)
class _Kernel:
    launches: list[int]
    is_fused: bool
    elements: int
    level: int
    """Dependency depth: greater than that of each kernel of the segment whose results this one reads."""
    is_read: bool = False
    """Whether another kernel reads this kernel's results."""
    rows: int = 0
    """Output elements of its reductions; 0: none."""
    sources: dict[int, set[int]] = field(default_factory=dict)
    """For each storage that it produces: the external ones from which it is computed, except for results of reductions.
    """
    again: set[int] = field(default_factory=set)
    """Storages read to recompute absent tensors."""

    def fits(self, elements: int) -> bool:
        """Return whether an operator over `elements` elements can join."""
        return elements in (self.elements, self.rows)

    def take_in(self, other: _Kernel) -> None:
        """Merge another kernel into this one."""
        self.launches = sorted(self.launches + other.launches)
        self.level, self.is_read = max(self.level, other.level), self.is_read or other.is_read
        self.elements, self.rows = max(self.elements, other.elements), self.rows or other.rows
        self.sources = {
            storage: {deep for one in sources for deep in self.sources.get(one, {one})}
            for storage, sources in (self.sources | other.sources).items()
        }


def plan(recording: Recording, costs: Costs) -> Plan:
    """Return the kernels of an iteration as compiled."""
    return _Planner(recording, costs).plan()


class _Planner:
    def __init__(self, recording: Recording, costs: Costs):
        self._costs = costs
        self._same = _aliases(recording)
        self._launches = [self._by_first(launch) for launch in recording.launches]
        self._shared = {self._same.get(storage, storage) for storage in recording.shared}
        self._freed: dict[int, int] = {}
        for storage in {*recording.freed, *self._same, *self._same.values()}:
            first, freed = self._same.get(storage, storage), recording.freed.get(storage, _NEVER)
            self._freed[first] = max(freed, self._freed.get(first, 0))
        self._kernel_of: dict[int, _Kernel] = {}
        """Kernel of each launch."""
        self._kernels: list[_Kernel] = []
        self._bytes: dict[int, int] = {}
        """Maximum bytes of reading a storage."""
        self._readers: defaultdict[int, list[int]] = defaultdict(list)
        self._absent: set[int] = set()
        self._until: dict[int, int] = {}

    def _by_first(self, launch: Launch) -> Launch:
        """Return a launch with aliased storages replaced by the first number."""
        read = tuple(None if one is None else self._same.get(one, one) for one in launch.storages)
        return Launch(launch.operator, launch.segment, read, [self._same.get(one, one) for one in launch.made])

    def plan(self) -> Plan:
        segments: defaultdict[Segment, list[int]] = defaultdict(list)
        for place, launch in enumerate(self._launches):
            if launch.segment is not None:
                segments[launch.segment].append(place)
            if launch.operator.has_kernel:
                self._note_reads(place, launch)
        for places in segments.values():
            self._group(places)
        for kernel in self._kernels:
            self._drop(kernel)
        steps: list[Step | None] = [
            None if launch.segment is None else Step(0.0, launch.operator.number) for launch in self._launches
        ]
        for kernel in self._kernels:
            steps[kernel.launches[0]] = self._step(kernel)
        made = [
            (storage, (place, which))
            for place, launch in enumerate(self._launches)
            for which, storage in enumerate(launch.made)
        ]
        absent = {where for storage, where in made if storage in self._absent}
        until = {where: self._until[storage] for storage, where in made if storage in self._until}
        return Plan([launch.operator for launch in self._launches], steps, absent, until)

    def _note_reads(self, place: int, launch: Launch) -> None:
        for storage, shape in zip(launch.storages, launch.operator.inputs, strict=True):
            if storage is not None:
                self._readers[storage].append(place)
                self._bytes[storage] = max(self._bytes.get(storage, 0), shape.bytes)

    # -- grouping operators into kernels --

    def _group(self, places: Sequence[int]) -> None:
        """Form the kernels of one segment."""
        makers: dict[int, int] = {}
        """The launch that produced a storage."""
        for place in places:
            launch = self._launches[place]
            if not launch.operator.has_kernel:
                continue
            sources = {self._kernel_of[makers[storage]] for storage in launch.storages if storage in makers}
            is_fusible = self._is_fusible(launch)
            kernel = self._join(launch, sources) if is_fusible else None
            if kernel is None:
                kernel = self._open(launch, sources, is_fusible)
            kernel.launches.append(place)
            self._kernel_of[place] = kernel
            self._trace(kernel, launch)
            for storage in (*launch.made, *_changed(launch)):
                makers[storage] = place

    def _is_fusible(self, launch: Launch) -> bool:
        operator = launch.operator
        is_own = operator.name.startswith(("aten.", "prims."))
        is_apart = not is_own or operator.base.startswith(_APART) or self._costs.is_shaped(operator)
        return not is_apart and None not in launch.storages and bool(operator.inputs or operator.outputs)

    def _join(self, launch: Launch, sources: set[_Kernel]) -> _Kernel | None:
        """Return the kernel that an operator can join, among those whose results it reads. Several are merged if none
        waits for another: they have the same level, or nothing else reads them."""
        elements, level = self._elements(launch.operator), max((one.level for one in sources), default=0)
        last = {one for one in sources if one.level == level}
        if not last or not all(one.is_fused and one.fits(elements) for one in last):
            return None
        last |= {one for one in sources if one.is_fused and one.fits(elements) and not one.is_read}
        if sum(len(one.launches) for one in last) >= MAX_FUSED:
            return None
        kernel, *others = sorted(last, key=lambda one: one.launches[0])
        for other in others:
            kernel.take_in(other)
            self._kernels.remove(other)
            self._kernel_of |= dict.fromkeys(other.launches, kernel)
        for one in sources - last:
            one.is_read = True
        if self._costs.reduces(launch.operator):
            kernel.rows = kernel.rows or _rows(launch.operator)
        return kernel

    def _open(self, launch: Launch, sources: set[_Kernel], is_fusible: bool) -> _Kernel:
        operator = launch.operator
        for one in sources:
            one.is_read = True
        kernel = _Kernel([], is_fusible, self._elements(operator), 1 + max((one.level for one in sources), default=0))
        if is_fusible and self._costs.reduces(operator):
            kernel.rows = _rows(operator)
        self._kernels.append(kernel)
        return kernel

    def _elements(self, operator: Operator) -> int:
        """Return the number of elements iterated over: of the input for a reduction, else of the result."""
        out = max((one.elements for one in operator.outputs), default=0)
        if operator.outputs and not self._costs.reduces(operator):
            return out
        return max(out, *(one.elements for one in operator.inputs), 0)

    def _trace(self, kernel: _Kernel, launch: Launch) -> None:
        """Record the sources of an operator's results."""
        found: set[int] = set()
        for storage in launch.storages:
            if storage is not None:
                found |= kernel.sources.get(storage, {storage})
        is_kept = self._costs.reduces(launch.operator)
        for storage, shape in zip(launch.made, launch.operator.outputs, strict=False):
            kernel.sources[storage] = set() if is_kept and shape.elements < kernel.elements else found
            self._bytes[storage] = max(self._bytes.get(storage, 0), shape.bytes)

    # -- which tensors exist --

    def _drop(self, kernel: _Kernel) -> None:
        """Find the outputs that a kernel need not write: those read only by itself, and those that can be recomputed
        from tensors that exist or take less memory than is saved."""
        if not kernel.is_fused:
            return
        changed = {storage for place in kernel.launches for storage in _changed(self._launches[place])}
        again: defaultdict[frozenset[int], list[tuple[int, list[_Kernel]]]] = defaultdict(list)
        for storage, sources in kernel.sources.items():
            if storage in self._shared or storage in changed or self._freed.get(storage, _NEVER) == _NEVER:
                continue
            readers = {self._kernel_of.get(place) for place in self._readers[storage]} - {kernel}
            later = [one for one in readers if one is not None]
            if not readers:
                self._absent.add(storage)
            elif (
                sources and len(later) == len(readers) and all(_goes_back(self._launches, kernel, one) for one in later)
            ):
                last = max(one.launches[0] for one in later)
                lost = frozenset(one for one in sources if self._freed.get(one, _NEVER) <= last)
                again[lost].append((storage, later))
        for lost, saved in again.items():
            if not lost & kernel.sources.keys() and self._size(lost) <= self._size(storage for storage, _ in saved) / 2:
                self._compute_again(kernel, lost, saved)

    def _size(self, storages: Iterable[int]) -> int:
        return sum(self._bytes.get(one, 0) for one in storages)

    def _compute_again(self, kernel: _Kernel, lost: frozenset[int], saved: list[tuple[int, list[_Kernel]]]) -> None:
        """Let readers recompute the results in `saved`; the storages in `lost`, which would be freed, remain until
        then."""
        for storage, readers in saved:
            self._absent.add(storage)
            for one in readers:
                one.again |= kernel.sources[storage]
                for source in lost:
                    self._until[source] = max(self._until.get(source, 0), one.launches[0])

    # -- durations --

    def _step(self, kernel: _Kernel) -> Step:
        members = [self._launches[place].operator for place in kernel.launches]
        if not kernel.is_fused:
            return Step(self._costs.compiled_s(members[0]), members[0].number)
        reads: dict[int, int] = {storage: self._bytes[storage] for storage in kernel.again if storage in self._bytes}
        written = 0
        for place in kernel.launches:
            launch = self._launches[place]
            for storage, shape in zip(launch.storages, launch.operator.inputs, strict=True):
                if storage is not None and storage not in kernel.sources and storage not in self._absent:
                    size = self._costs.read_bytes(launch.operator, shape)
                    reads[storage] = max(reads.get(storage, 0), size)
            written += sum(self._bytes.get(one, 0) for one in launch.made if one not in self._absent)
            written += sum(self._bytes.get(one, 0) for one in _changed(launch) if one not in kernel.sources)
        named = max(members, key=self._costs.device_s)
        return Step(self._costs.fused_s(members, sum(reads.values()) + written), named.number)


def _aliases(recording: Recording) -> dict[int, int]:
    """Return storages that alias another, and that other."""
    same: dict[int, int] = {}
    for launch in recording.launches:
        if launch.operator.base in _SAME and launch.storages and launch.storages[0] is not None:
            first = same.get(launch.storages[0], launch.storages[0])
            same |= dict.fromkeys(launch.made, first)
    return same


def _goes_back(launches: Sequence[Launch], kernel: _Kernel, reader: _Kernel) -> bool:
    """Return whether `reader` is in the backward pass of the call whose forward pass contains `kernel`."""
    own, other = (launches[one.launches[0]].segment for one in (kernel, reader))
    return own is not None and not own[1] and other == (own[0], True) and reader.is_fused


def _rows(operator: Operator) -> int:
    return min(one.elements for one in operator.outputs)


def _changed(launch: Launch) -> list[int]:
    """Return the storages that an operator modifies in place, judging by its name."""
    is_in_place = launch.operator.base.endswith("_") and not launch.operator.base.endswith("__")
    return [one for one in launch.storages[:1] if one is not None] if is_in_place else []
