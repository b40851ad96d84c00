"""Values that a script reads. Tensors with one element (a loss, GradScaler's scale, a flag) have one: computed where
all inputs are known, else a plausible one, which is counted. Unknown masks used as indices select half of the elements.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from emulator.peers.script import indices
from emulator.peers.script.metas import half

aten = torch.ops.aten

COMPARED = {aten.equal.default, aten.allclose.default}
"""Operators that compare two tensors, assumed to be equal if their values are unknown."""

READ = {aten._local_scalar_dense.default, aten.is_nonzero.default, *COMPARED}
"""Operators that return a value to Python."""

TRUE = {aten.all.default, aten.all.dim, aten._is_all_true.default}
"""Operators whose result is assumed to be true if inputs are unknown: whether all is finite, equal or close."""

COUNTS = {aten.bincount.default, aten.histc.default}
"""Operators that count occurrences of numbers: assumed to be equal if inputs are unknown."""

_DECIDED = {
    **dict.fromkeys(("aten::bitwise_or", "aten::bitwise_or_", "aten::logical_or", "aten::logical_or_"), True),
    **dict.fromkeys(("aten::bitwise_and", "aten::bitwise_and_", "aten::logical_and", "aten::logical_and_"), False),
}
"""Operators whose result one operand decides if all of its elements are so."""

_COUNTED: dict[Any, Callable[[int, int], Any]] = {
    aten.any.default: lambda ones, of: ones > 0,
    aten.all.default: lambda ones, of: ones == of,
    aten.sum.default: lambda ones, of: ones,
    aten.sum.dim_IntList: lambda ones, of: ones,
}
"""Results that follow from the number of a mask's elements that are 1."""

MASKS = {aten.nonzero.default: 0, aten.masked_select.default: 1}
"""Operators whose result has an element for each of a mask's that is not zero, half of them if unknown; and the mask's
place among their arguments."""

KEPT = {aten._amp_foreach_non_finite_check_and_unscale_.default}
"""Operators assumed to leave values unchanged: no gradient overflows."""

COPIED = 1 << 18
"""Maximum number of elements of tensors whose values are kept between host and device: the order of
DDP's buckets, ids of tokens, masks of blocks."""

_RANDOM = ("rand", "uniform", "normal", "bernoulli", "multinomial", "dropout", "exponential", "geometric")


class KnownValues:
    """Known values of tensors, by their storage."""

    def __init__(self) -> None:
        self.assumed_reads = 0
        """Number of reads of values that nothing determines."""
        self.assumed_masks = 0
        """Number of masks that were assumed to select half of the elements."""
        self.even_counts = 0
        """Number of counts that were assumed to be even: tokens of experts, members of classes."""
        self.assumed_lengths = 0
        """Number of kernels of attention whose sequences were assumed to be equally long."""
        self._values: dict[int, dict[int, Any]] = {}
        """Storage → offset → value."""
        self._copies: dict[int, torch.Tensor] = {}
        """Values copied from the host, by target storage."""
        self._selected: dict[int, int] = {}
        """Elements of masks that are not zero, by storage."""
        self._choices: dict[int, int] = {}
        """Below which number unknown integers are, evenly distributed, by storage: experts, tokens that were drawn."""

    def forget(self, address: int) -> None:
        """Discard all values of a storage."""
        self._values.pop(address, None)
        self._copies.pop(address, None)
        self._selected.pop(address, None)
        self._choices.pop(address, None)

    def selected(self, mask: torch.Tensor) -> int | None:
        """Return how many elements of a mask are 1, its others being 0; None: unknown."""
        if mask.device.type == "cpu" and type(mask) is torch.Tensor:
            return None
        copy = self.copy_of(mask)
        if copy is not None:
            count = int(copy.count_nonzero())
            return count if bool(((copy == 0) | (copy == 1)).all()) else None
        storage = mask.untyped_storage()
        ones = self._selected.get(storage._cdata)
        if not ones or _is_whole(mask, storage):
            return ones
        return max(1, round(ones * mask.numel() * mask.element_size() / storage.nbytes()))

    def select(self, mask: Any, count: int | None) -> None:
        """Record how many elements of a mask are 1."""
        if count is not None and isinstance(mask, torch.Tensor) and _is_whole(mask, mask.untyped_storage()):
            self._selected[mask.untyped_storage()._cdata] = count

    def choices(self, tensor: torch.Tensor) -> int | None:
        """Return below which number a tensor's unknown integers are, evenly distributed; None: unknown."""
        return self._choices.get(tensor.untyped_storage()._cdata)

    def choose(self, tensor: torch.Tensor, count: int | None) -> None:
        """Record that a tensor's unknown integers are evenly distributed below `count`."""
        if count is not None:
            self._choices[tensor.untyped_storage()._cdata] = count

    def count(self, func: Any, args: Any, result: Any) -> bool:
        """Store whether a mask has elements that are 1, only such, or how many (of each row, evenly), if its number of
        them is known."""
        if func not in _COUNTED or result.device.type == "cpu":
            return False
        ones = self.selected(args[0])
        if ones is None or result.is_floating_point() or result.numel() > COPIED:
            return False
        if func is aten.sum.dim_IntList:
            self.assume_even(result, ones)
        else:
            self._set(result, _COUNTED[func](ones, args[0].numel()))
        return True

    def places(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """Return the indices of a device mask's elements that are not zero, without the host waiting for them."""
        copy, count = self.copy_of(mask), self.selected(mask)
        found = [None] * mask.dim() if copy is None else copy.nonzero().unbind(1)
        count = len(found[0]) if found and found[0] is not None else half(mask.numel()) if count is None else count
        made = []
        for each in found:
            made.append(torch.empty(count, dtype=torch.int64, device=mask.device))
            self.forget(made[-1].untyped_storage()._cdata)
            if each is not None:
                self.store(made[-1], each)
        return made

    def known_value(self, one: Any) -> Any:
        """Return a number, or that of a tensor with one element; None: unknown."""
        if not isinstance(one, torch.Tensor):
            return one
        return self.value(one) if one.numel() == 1 and self.are_known([one]) else None

    def copied(self, tensor: torch.Tensor, source: Any) -> None:
        """Record the copy of a host tensor, or a number, to a device tensor, which is new or all of its storage."""
        storage = tensor.untyped_storage()
        if tensor.numel() <= COPIED and _is_whole(tensor, storage) and tensor.is_contiguous():
            whole = torch.as_tensor(source).detach().to(tensor.dtype, copy=True).expand(tensor.shape)
            self._copies[storage._cdata] = whole.contiguous()

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values copied to a tensor, or a part of it, if unmodified since."""
        found = self._copies.get(tensor.untyped_storage()._cdata)
        if found is None or found.dtype != tensor.dtype:
            return None
        return found.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def payload(self, tensor: torch.Tensor) -> bytes | None:
        """Return the values of a tensor to send, as bytes; None if unknown."""
        if tensor.device.type == "cpu" and type(tensor) is torch.Tensor:
            found: torch.Tensor | None = tensor.detach()
        else:
            found = self.copy_of(tensor)
            if found is None and tensor.numel() == 1 and self._is_known(tensor):
                found = torch.full((1,), self.value(tensor), dtype=tensor.dtype)
        return None if found is None else found.reshape(-1).view(torch.uint8).numpy().tobytes()

    def receive(self, tensor: torch.Tensor, payload: bytes | None) -> None:
        """Store received values; `payload`: the sender's."""
        is_here = tensor.device.type == "cpu" and type(tensor) is torch.Tensor
        if not is_here:
            self.forget(tensor.untyped_storage()._cdata)
        if not payload:
            if is_here and tensor.numel():
                self.assumed_reads += 1
                tensor.fill_(plausible(tensor.dtype))
            return
        values = torch.frombuffer(bytearray(payload), dtype=tensor.dtype).reshape(tensor.shape)
        if is_here:
            tensor.copy_(values)
        elif tensor.numel() == 1:
            self._set(tensor, values.item())
        else:
            self.copied(tensor, values)

    def _set(self, tensor: torch.Tensor, value: Any) -> None:
        address, offset = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
        copy = self._copies.get(address)
        if copy is not None and copy.dtype == tensor.dtype:
            copy.view(-1)[offset] = value
        else:
            self._copies.pop(address, None)
            self._values.setdefault(address, {})[offset] = value

    def assume(self, tensor: torch.Tensor, value: Any) -> None:
        """Assume a value that nothing determines."""
        if tensor.numel() == 1 and tensor.device.type == "cuda":
            self.assumed_reads += 1
            self._set(tensor, value)

    def assume_even(self, counts: torch.Tensor, total: int) -> None:
        """Assume that `total` elements are counted evenly."""
        self.even_counts += 1
        bins = counts.numel()
        even = torch.full((bins,), total // bins)
        even[: total % bins] += 1
        self.copied(counts, even.reshape(counts.shape))

    def store(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Store all values of a device tensor, which may be a part of its storage."""
        if tensor.device.type == "cpu" and type(tensor) is torch.Tensor:
            tensor.copy_(values)
            return
        storage = tensor.untyped_storage()
        whole = self._copies.get(storage._cdata)
        elements = storage.nbytes() // tensor.element_size()
        if whole is None or whole.dtype != tensor.dtype:
            if elements > COPIED:
                return
            whole = self._copies[storage._cdata] = torch.zeros(elements, dtype=tensor.dtype)
            self._values.pop(storage._cdata, None)
        whole.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset())).copy_(values)

    def are_known(self, flat: list[Any]) -> bool:
        """Return whether the values of all tensors among the arguments are known, and few."""
        return all(one.numel() <= COPIED and self._holds(one) for one in flat if isinstance(one, torch.Tensor))

    def _holds(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type == "cpu" and type(tensor) is torch.Tensor:
            return True
        return self.copy_of(tensor) is not None or (tensor.numel() == 1 and self._is_known(tensor))

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a host tensor with the known or plausible values."""
        if tensor.device.type == "cpu" and type(tensor) is torch.Tensor:
            return tensor
        copy = self.copy_of(tensor)
        return torch.full(tensor.shape, self.value(tensor), dtype=tensor.dtype) if copy is None else copy

    def compute(self, func: Any, flat: list[Any], spec: Any, result: Any) -> None:
        """Compute an operator whose tensors all have one element, or are known."""
        if not isinstance(result, torch.Tensor) or result.device.type == "cpu":
            return
        name = func._schema.name
        if "empty" in name and not result.is_floating_point() and not result.is_complex():
            self.copied(result, torch.zeros(result.shape, dtype=result.dtype, device="cpu"))  # as good as any
        if any(word in name for word in _RANDOM) or "empty" in name:
            return
        with torch.utils._python_dispatch._disable_current_modes():
            real = [self.real(one) if isinstance(one, torch.Tensor) else one for one in flat]
            real = [None if isinstance(one, torch.Generator) else one for one in real]
            args, kwargs = tree_unflatten(real, spec)
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            try:
                given = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError, TypeError):
                return
            if given.numel() == 1:
                self._set(result, given.reshape(()).item())
            else:
                self.copied(result, given)

    def decide(self, func: Any, flat: list[Any], result: torch.Tensor) -> bool:
        """Store the result of "or" with known ones, or of "and" with known zeros, whatever the other operand is. Return
        whether it is such: whether all sequences have reached their maximum length, or end."""
        decided = _DECIDED.get(func._schema.name)
        if decided is None or (decided and result.dtype is not torch.bool) or result.device.type == "cpu":
            return False
        operands = [one for one in flat[:2] if isinstance(one, torch.Tensor) and one.shape == result.shape]
        is_decided = any(self.are_known([one]) and bool(((self.real(one) != 0) == decided).all()) for one in operands)
        if is_decided:
            self.store(result, torch.full(result.shape, decided, dtype=result.dtype, device="cpu"))
        return is_decided

    def compute_in_place(self, func: Any, flat: list[Any], spec: Any, changed: tuple[int | str, ...]) -> bool:
        """Compute an operator that modifies tensors, if the values of all are known. Return whether they were."""
        if not self.are_known(flat) or any(word in func._schema.name for word in _RANDOM):
            return False
        with torch.utils._python_dispatch._disable_current_modes():
            real = [self.real(one).clone() if isinstance(one, torch.Tensor) else one for one in flat]
            (args, kwargs), (given, named) = tree_unflatten(real, spec), tree_unflatten(flat, spec)
            pairs = [((args, given) if isinstance(place, int) else (kwargs, named), place) for place in changed]
            try:
                func(*args, **kwargs)
            except (RuntimeError, NotImplementedError, TypeError):
                return False
        for (ours, theirs), place in pairs:
            for value, one in zip(tree_leaves(ours[place]), tree_leaves(theirs[place]), strict=True):
                if isinstance(one, torch.Tensor):
                    self.store(one, value)
        return True

    def value(self, tensor: torch.Tensor) -> Any:
        """Return the value of a tensor with one element; a plausible one if unknown."""
        if tensor.device.type == "cpu" and type(tensor) is torch.Tensor:
            return tensor.reshape(()).item()
        copy = self.copy_of(tensor)
        if copy is not None:
            return copy.reshape(()).item()
        found = self._values.get(tensor.untyped_storage()._cdata, {})
        return found.get(int(tensor.storage_offset()), self.plausible(tensor))

    def plausible(self, tensor: torch.Tensor) -> Any:
        """Return the value assumed for a tensor's unknown ones: the middle one of its choices, if there are many."""
        return max(1, (self.choices(tensor) or 0) // 2) if tensor.dtype in indices.INTEGERS else plausible(tensor.dtype)

    def drawn(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return random values for a host tensor without any: from 0 to 1, integers up to 127."""
        self.assumed_reads += 1
        with torch.utils._python_dispatch._disable_current_modes():
            values = torch.rand(tensor.shape)
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                return values.to(tensor.dtype)
            return (values * (1 if tensor.dtype is torch.bool else 127)).round().to(tensor.dtype)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether the value of a tensor with one element is known."""
        address, offset = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
        return offset in self._values.get(address, {}) or self.copy_of(tensor) is not None

    def read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator in READ."""
        tensor = args[0]
        if func in COMPARED:
            if self.are_known(args[:2]):
                with torch.utils._python_dispatch._disable_current_modes():
                    return func(*map(self.real, args[:2]), *args[2:], **kwargs)
            self.assumed_reads += 1
            return func is not aten.equal.default or args[0].shape == args[1].shape
        if not self._is_known(tensor):
            self.assumed_reads += 1
        found = self.value(tensor)
        return bool(found) if func is aten.is_nonzero.default else found


def _is_whole(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Return whether a tensor has all elements of its storage."""
    return storage.nbytes() == tensor.numel() * tensor.element_size()


def plausible(dtype: torch.dtype) -> Any:
    """Return the value assumed for an unknown one."""
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _index(args: Any, kwargs: dict[str, Any], known: KnownValues) -> Any:
    """Replace masks by indices of their elements that are not zero, as torch does before its kernel."""
    picked: list[Any] = []
    for index in args[1]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        picked += index.nonzero().unbind(1) if is_mask else [index]
    return (args[0], picked, *args[2:]), kwargs


def _put(args: Any, kwargs: dict[str, Any], known: KnownValues) -> Any:
    """Replace masks by indices; one that selects elements for the same value is filled without waiting for them."""
    masks = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
    if args[2].numel() != 1 or len(masks) != 1:
        return _index(args, kwargs, known)
    picked: list[Any] = []
    for index in args[1]:
        if index is masks[0]:
            picked += known.places(index)
        else:
            picked.append(index)
    return (args[0], picked, *args[2:]), kwargs


RULES: dict[Any, Callable[[Any, dict[str, Any], KnownValues], Any]] = {
    aten.index.Tensor: _index,
    aten.index_put.default: _put,
    aten.index_put_.default: _put,
}
"""Operators whose arguments are replaced first."""
