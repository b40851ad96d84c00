"""Kernel selection that torch bases on the device, which does not exist here: attention backends follow from the
device's architecture; operators that have both a kernel and a decomposition use the kernel.
"""

from collections.abc import Callable
from typing import Any

import torch

from emulator.cluster.accelerator import Accelerator
from emulator.jobs.workload.implementations import WITHOUT_FLASH
from emulator.peers.script import recurrent
from emulator.peers.script.tensors import owner

aten = torch.ops.aten
_FLASH_HEAD = 256
"""Largest head size of FlashAttention."""
_READ = aten._local_scalar_dense.default
"""Reads a scalar: torch.tensor calls its kernel, without dispatching, for those in lists."""
_ON_GPUS_ONLY = ("_fused_rms_norm",)

_kept: list[Any] = []
_chosen: dict[str, Callable[..., Any]] = {}
"""Replacements of operators, by name with overload."""


def install(accelerator: Accelerator) -> None:
    """Install the kernel selection for device tensors."""
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    for name in _with_kernels():
        library.impl(name, _never, "CUDA")
    library.impl("_local_scalar_dense", lambda scalar: owner[0].run(_READ, (scalar,), {}), "CUDA")
    has_flash = accelerator.architecture not in WITHOUT_FLASH

    def attention(*arguments: Any, **options: Any) -> Any:
        return _attention(has_flash, *arguments, **options)

    _chosen["aten::scaled_dot_product_attention"] = attention
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key)
    _chosen.update(recurrent.install(library))
    for name, takes in _KERNELS.items():
        setattr(torch._C, f"_can_use_{name}_attention", lambda given, *_, takes=takes: takes(has_flash, given))


def is_composite(func: Any) -> bool:
    """Return whether torch decomposes an operator for the device before its kernels are dispatched."""
    name = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in _chosen:
        return True
    return has(name, "CompositeImplicitAutograd") and not has(name, "CUDA")


def is_reshaping(func: Any) -> bool:
    """Return whether a device-independent kernel of torch implements the operator, as for those that only change sizes
    and strides."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeExplicitAutograd"))


def decompose(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator's decomposition."""
    chosen = _chosen.get(func.name())
    return func.decompose(*args, **kwargs) if chosen is None else chosen(*args, **kwargs)


def _never(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError("handled before dispatch to kernels")


def _with_kernels() -> list[str]:
    """Return operators that torch decomposes unless the device has a kernel for them: those with a host kernel, and
    `_ON_GPUS_ONLY`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = [f"aten::{name}" for name in _ON_GPUS_ONLY]
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has(name, "CompositeImplicitAutograd") and has(name, "CPU"):
            found.append(name)
    return [name.removeprefix("aten::") for name in found if not has(name, "CUDA")]


def _is_half(query: Any) -> bool:
    return query.dtype in (torch.float16, torch.bfloat16)


def _takes_flash(has_flash: bool, given: Any) -> bool:
    head = given.query.size(-1)
    enabled = has_flash and torch.backends.cuda.flash_sdp_enabled()
    return enabled and _is_half(given.query) and given.attn_mask is None and head <= _FLASH_HEAD and not head % 8


_KERNELS: dict[str, Callable[[bool, Any], bool]] = {
    "flash": _takes_flash,
    "mem_efficient": lambda has_flash, given: torch.backends.cuda.mem_efficient_sdp_enabled(),
    "cudnn": lambda has_flash, given: has_flash and _is_half(given.query) and torch.backends.cuda.cudnn_sdp_enabled(),
}
"""Whether a kernel can be used for arguments of attention, if the device has FlashAttention or not: for scripts that
ask, and for nested tensors, whose kernel torch chooses in Python."""


def _attention(
    has_flash: bool,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Dispatch attention to FlashAttention, the memory-efficient kernel or plain operators, in torch's order
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). cuDNN's kernels count as one of the first two."""
    head, flags = query.size(-1), torch.backends.cuda
    is_half = _is_half(query)
    has_cudnn = has_flash and is_half and flags.cudnn_sdp_enabled()
    is_flash = has_flash and is_half and (flags.flash_sdp_enabled() or has_cudnn)
    if is_flash and attn_mask is None and head <= _FLASH_HEAD:
        if head % 8:
            padding = (0, 8 - head % 8)
            query, key, value = (torch.nn.functional.pad(one, padding) for one in (query, key, value))
            scale = scale or head**-0.5
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0][..., :head]
    if enable_gqa and key.size(-3) != query.size(-3):
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -float("inf"))
    if (flags.mem_efficient_sdp_enabled() or has_cudnn) and not (attn_mask is not None and attn_mask.requires_grad):
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], key.size(2))
        is_differentiated = query.requires_grad or key.requires_grad or value.requires_grad
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, is_differentiated, dropout_p, is_causal, scale=scale)[0]
    if not flags.math_sdp_enabled():  # torch's message
        raise RuntimeError("No available kernel. Aborting execution.")
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
