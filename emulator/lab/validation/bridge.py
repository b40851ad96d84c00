"""Published tokens/s of NVIDIA's Megatron Bridge on H100, B200 and GB200, dense models and mixtures of experts
(NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md: containers 25.09, 25.11, 26.02, 26.02.01, 26.04.01
and 26.06; 26.05 and 26.07: seconds in skills/nemo-mbridge-perf-expert-parallel-overlap/SKILL.md) and of its AutoModel,
FSDP on torch (NVIDIA-NeMo/Automodel, docs/performance-summary.md, October 2025).

Constants are fitted neither to B300's and GB300's rows (`blackwell_ultra.csv`, 26.02 to 26.06, nvfp4 included) nor are
intervals. Their dispatchers and overlaps are those of B200's and GB200's recipes.

Excluded: other rows in nvfp4, those of experts with a capacity limit, of pipelines with more virtual stages than
layers, and in 26.06 those whose recipe captures whole iterations and fuses the experts' GEMMs (cuda_graph_impl
full_iteration, cutedsl_fused_grouped_mlp). Options that the pages don't state are taken from the recipes
(scripts/performance): dispatchers and overlaps, recomputation of gpt-oss's norms and activations (since November 2025,
#1438), sharded optimizer states, gradients in bf16, forced-balanced routing, experts without tensor parallelism;
sequence parallelism and overlapped collectives wherever there is tensor parallelism, except in mixtures of experts on
H100.
"""

from typing import Any

from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.lab.validation.rows import grouped, published

TITLES = {"h100-dgx": "H100", "b200-dgx": "B200", "gb200-nvl72": "GB200", "b300-dgx": "B300", "gb300-nvl72": "GB300"}
Published = tuple[str, Request, float]
"""Name, job, tokens/s per accelerator."""


def recipe(cluster: str, **fields: Any) -> Job:
    """Return a job of `fields` with what NVIDIA's recipes share: fused attention and, wherever there is tensor
    parallelism, sequence parallelism and overlapped collectives, these not in mixtures of experts on H100."""
    is_split = fields["tp"] > 1
    overlaps = is_split and not (fields["ep"] > 1 and cluster == "h100-dgx")
    return Job(**fields, sequence_parallel=is_split, async_tp=overlaps, attention="flash")


def published_rows() -> list[Published]:
    """Rows that constants and intervals are fitted to."""
    return [_published(row) for row in published("bridge.csv")]


def _published(row: dict[str, str]) -> Published:
    numbers = {key: int(value) for key, value in row.items() if value.isdigit()}
    tp, virtual, ep = numbers["tp"], numbers["virtual_stages"], numbers["ep"]
    cluster, model = row["cluster"], row["model"]
    job = recipe(
        cluster,
        gpus=numbers["gpus"],
        batch=numbers["batch"],
        micro_batch=numbers["micro_batch"],
        sequence=numbers["sequence"],
        tp=tp,
        pp=numbers["pp"],
        cp=numbers["context_parallel"],
        ep=ep,
        etp=1 if ep > 1 else 0,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        zero=3 if numbers["fsdp"] else 1,
        precision=row["precision"],
        recompute="pointwise" if model.startswith("gpt-oss") else "none",
        implementation=row["implementation"],
        dispatcher=row["dispatcher"],
        overlap_experts=row["overlaps"] == "1",
    )
    split = f"tp {tp} pp {job.pp} cp {job.cp} ep {ep}" + (" fsdp" if numbers["fsdp"] else "")
    name = f"{row['release']}, {model} x {job.gpus} {cluster}, {row['precision']}, {job.batch} in {job.micro_batch}"
    return (
        f"{name}, {split}",
        Request(model=model, cluster=cluster, job=job, ignore_memory=True),
        float(row["tokens_per_s_per_gpu"]),
    )


def groups() -> list[tuple[str, list[Published]]]:
    """Rows of dense models and of mixtures of experts, by cluster."""
    later = [_published(row) for row in published("blackwell_ultra.csv")]
    return grouped((_title(request), (name, request, rate)) for name, request, rate in [*published_rows(), *later])


def _title(request: Request) -> str:
    return f"Megatron Bridge, {'experts' if request.job.ep > 1 else 'dense'}, {TITLES[request.cluster]}"
