"""What DDP tells of its buckets: which parameters are in which, and in what order their gradients become final."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from host_agent.profile.iterations import living


def names_of_parameters() -> dict[int, str]:
    """`id` of a parameter → its name, where there is one DistributedDataParallel, and names are not ambiguous."""
    modules = _modules()
    return {id(one): name for name, one in modules[0].module.named_parameters()} if len(modules) == 1 else {}


def describe() -> list[dict[str, Any]]:
    """One entry for each DistributedDataParallel of this process. Sizes are bytes; `gradients`: names in the order in
    which they became final, where DDP knows it (from the second iteration on)."""
    return [_describe(module) for module in _modules()]


def _modules() -> list[Any]:
    if not dist.is_available():
        return []
    from torch.nn.parallel import DistributedDataParallel

    return living(DistributedDataParallel)


def _describe(module: Any) -> dict[str, Any]:
    logged = module._get_ddp_logging_data()
    names = {id(parameter): name for name, parameter in module.module.named_parameters()}
    parameters = list(module._module_parameters)
    named = [names.get(id(parameter), f"parameter {number}") for number, parameter in enumerate(parameters)]

    def listed(text: str) -> list[str]:
        return [named[int(number)] for number in text.replace(",", " ").split()]

    rebuilt = logged.get("rebuilt_per_bucket_param_indices") or ""
    return {
        "module": logged.get("module_name", ""),
        "bucket_cap_bytes": int(logged.get("bucket_cap_bytes", 0)),
        "comm_hook": logged.get("comm_hook", ""),
        "buckets": [listed(bucket) for bucket in rebuilt.split(",") if bucket.strip()],
        "gradients": listed(logged.get("prev_iteration_grad_ready_order_indices") or ""),
        "parameters": {
            name: {
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "bytes": parameter.numel() * parameter.element_size(),
            }
            for name, parameter in zip(named, parameters, strict=True)
        },
    }
