"""The most that torch's tensors of the CPU hold at a time, exactly: from the allocator's own records, operators'
temporaries among them. What numpy or a file holds is not seen."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object]) -> int:
    """Bytes above those that are there before `step`, at its highest point."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    records = [each for each in recorded.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = peak = 0
    for each in sorted(records, key=lambda each: each.start_ns()):
        now += each.nbytes()
        peak = max(peak, now)
    return peak
