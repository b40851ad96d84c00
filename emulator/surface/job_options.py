"""Options of `switchml emulate` that describe a job, and controls of `switchml ui`: each sets one key of a job file."""

from typing import Any

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHY_HELP
from switchml import units
from switchml.cli.options import BUCKET, Named, Quantity, option
from switchml.errors import ConfigError

GROUPS: dict[str, list[tuple[str, str, Any, str]]] = {
    "Job": [
        ("--model", "model", str, "Built-in model, .toml or .csv file, or torch module (package.module:callable)."),
        ("--input-shape", "input_shape", str, "Shape of a torch module's input without the batch, such as 3x224x224."),
        ("--cluster", "cluster", str, "Built-in cluster or .toml file."),
        ("--accelerator", "accelerator", str, "Built-in accelerator or .toml file (switchml bench kernels)."),
        ("--gpus", "job.gpus", int, "Number of accelerators."),
        ("--batch", "job.batch", int, "Global batch: samples of all ranks in an iteration."),
        ("--micro-batch", "job.micro_batch", int, "Samples in a micro-batch."),
        ("--sequence", "job.sequence", int, "Tokens in a sample."),
        ("--document", "job.document", int, "Tokens of a document, where several are packed into a sample."),
        (
            "--precision",
            "job.precision",
            str,
            "Precision of compute: fp16, bf16, fp32, tf32; of linear layers fp8, mxfp8, nvfp4.",
        ),
        ("--optimizer", "job.optimizer", str, "Optimizer: adam or sgd."),
        ("--optimizer-kernels", "job.optimizer_kernels", str, "torch.optim's kernels: fused or foreach."),
        (
            "--master-weights/--no-master-weights",
            "job.master_weights",
            bool,
            "Keep weights and optimizer states in fp32 where kernels compute in half precision.",
        ),
        ("--lora", "job.lora", int, "Rank of LoRA's adapters, trained in the place of weights."),
        ("--lora-targets", "job.lora_targets", str, "Linear layers that have an adapter: qkv or all."),
    ],
    "Parallelism": [
        ("--split", "split", str, "auto: search all splits that the options leave open, and show the ten fastest."),
        ("--tp", "job.tp", int, "Number of tensor-parallel ranks."),
        ("--pp", "job.pp", int, "Number of pipeline stages."),
        ("--ep", "job.ep", int, "Number of expert-parallel ranks."),
        ("--etp", "job.etp", int, "Number of tensor-parallel ranks of an expert, out of tp."),
        (
            "--dispatcher",
            "job.dispatcher",
            str,
            "What brings tokens to experts: all-to-all or flex (DeepEP, HybridEP).",
        ),
        (
            "--overlap-experts/--no-overlap-experts",
            "job.overlap_experts",
            bool,
            "Move tokens to experts while another micro-batch is computed.",
        ),
        (
            "--cuda-graphs/--no-cuda-graphs",
            "job.cuda_graphs",
            bool,
            "Launch layers as CUDA graphs.",
        ),
        ("--cp", "job.cp", int, "Number of context-parallel ranks, which share each sequence."),
        ("--cp-exchange", "job.cp_exchange", str, "How they share keys and values: ring or all-to-all."),
        ("--zero", "job.zero", int, "ZeRO stage, 0 to 3 (3: FSDP)."),
        ("--schedule", "job.schedule", str, "Pipeline schedule: 1f1b, gpipe, interleaved, axonn or zb-h1."),
        ("--virtual-stages", "job.virtual_stages", int, "Model chunks on each stage (interleaved)."),
        (
            "--count-embedding/--no-count-embedding",
            "job.counts_embedding",
            bool,
            "Count the embedding as a layer where layers are split over stages.",
        ),
        (
            "--count-loss/--no-count-loss",
            "job.counts_loss",
            bool,
            "Count projection and loss as a layer where layers are split over stages.",
        ),
        (
            "--sequence-parallel/--no-sequence-parallel",
            "job.sequence_parallel",
            bool,
            "Split norms and dropout over tp ranks.",
        ),
        (
            "--async-tp/--no-async-tp",
            "job.async_tp",
            bool,
            "Hide tensor-parallel exchanges behind products, in pieces.",
        ),
    ],
    "FSDP (zero 3)": [
        ("--unit-layers", "job.fsdp.unit_layers", int, "FSDP: layers in a unit, which is gathered as a whole."),
        (
            "--unit-parameters",
            "job.fsdp.unit_parameters",
            float,
            "FSDP: parameters that close a unit, in place of layers.",
        ),
        ("--gather-ahead", "job.fsdp.prefetch", int, "FSDP: units gathered ahead of the one that runs."),
        (
            "--reshard-after-forward/--keep-after-forward",
            "job.fsdp.reshard_after_forward",
            bool,
            "FSDP: free weights after forward (FULL_SHARD) or keep them (SHARD_GRAD_OP).",
        ),
        ("--shard-group", "job.fsdp.group", int, "FSDP: ranks that hold one copy together (HYBRID_SHARD)."),
        ("--gather-bytes", "job.fsdp.gather_bytes", float, "FSDP: bytes of a gathered weight on the wire."),
        (
            "--reduce-each/--reduce-last",
            "job.fsdp.reduce_each",
            bool,
            "FSDP: reduce gradients after each micro-batch, or after the last.",
        ),
    ],
    "Implementation": [
        (
            "--implementation",
            "job.implementation",
            str,
            "Code that runs the model (switchml emulate list implementations).",
        ),
        (
            "--attention",
            "job.attention",
            str,
            "Attention's kernel: unfused, fa2, fa3, cudnn, …; flash: the implementation's choice.",
        ),
        ("--cross-entropy", "job.cross_entropy", str, "Loss: megatron, eager, compiled, fused or composer."),
        ("--fuse/--no-fuse", "job.fuse", bool, "One kernel of the element-wise ones between two products."),
    ],
    "Memory": [
        (
            "--recompute",
            "job.recompute",
            str,
            "Activation recomputation: none, selective, pointwise, operators or full.",
        ),
        ("--recompute-every", "job.recompute_every", int, "Of full: layers of a stage of which one is checkpointed."),
        ("--offload-bucket", "memory.offload_bucket", float, "Optimizer states on the host: parameters in a bucket."),
        ("--pruned", "memory.pruned", float, "Share of weights that are pruned."),
        ("--activation-ratio", "memory.activation_ratio", float, "Compression ratio of saved activations."),
        (
            "--activation-bytes-per-s",
            "memory.activation_bytes_per_s",
            float,
            "Rate at which activations are compressed.",
        ),
        ("--activation-tensor-s", "memory.activation_tensor_s", float, "Besides, for each of their tensors each way."),
        ("--ignore-memory/--check-memory", "ignore_memory", bool, "Emulate jobs that do not fit into memory, too."),
    ],
    "Communication": [
        ("--allreduce", "job.allreduce", str, ALGORITHMS_HELP),
        ("--hierarchy", "job.hierarchy", str, HIERARCHY_HELP),
        ("--gradient-bytes", "job.gradient_bytes", int, "Bytes of a gradient in memory and on the wire."),
        ("--bucket-cap", "job.bucket_bytes", float, "Bytes of gradients in a bucket."),
        ("--overlap/--no-overlap", "job.overlap", bool, "Reduce gradients during the backward pass."),
        ("--codec", "codec", str, "Gradient compression (see switchml emulate list codecs)."),
        ("--nccl-tables", "nccl_tables", str, "Folder of nccl-tests tables: costs of their all-reduces."),
    ],
    "In-network aggregation (allreduce switchml)": [
        ("--loss", "network.loss", float, "Share of packets lost on each link (switchml)."),
        ("--switch-jobs", "network.jobs", int, "Jobs that share the switch's slots."),
        ("--sparse/--dense", "network.sparse", bool, "Send only blocks that are not zero to the switch."),
        ("--density", "network.density", float, "Share of blocks that are not zero."),
        ("--wire-bytes", "network.wire_bytes", float, "Bytes of an element on the way to the switch: 4, 2 or 1."),
        ("--slots", "switch.slots", float, "Slots of the switch."),
        ("--payload", "switch.payload_bytes", float, "Payload of an aggregation packet."),
        ("--timeout-s", "switch.timeout_s", float, "Retransmission timeout."),
    ],
    "Data loading": [
        ("--loader", "data.loader", str, "Data loader: pytorch, lru, nopfs or solar."),
        ("--samples", "data.samples", int, "Samples in the data set."),
        ("--sample-bytes", "data.sample_bytes", float, "Bytes of a sample."),
        ("--epochs", "data.epochs", int, "Epochs to play, which shows what caches save."),
        ("--buffer-bytes", "data.buffer_bytes", float, "Host memory for the cache of each data-parallel rank."),
        ("--loader-workers", "data.workers", int, "Reads that a rank has in flight (DataLoader's workers)."),
        ("--prefetch", "data.prefetch", int, "Batches that a rank prefetches."),
        ("--read-window", "data.read_window", int, "Of solar: steps whose reads are joined (PlannedLoader: 8)."),
        (
            "--read-gap-bytes",
            "data.read_gap_bytes",
            float,
            "Of solar: most between joined reads (PlannedLoader: 32 KiB).",
        ),
    ],
    "Stragglers and noise": [
        ("--stragglers", "noise.stragglers", float, "Share of ranks that are slow."),
        ("--slowness", "noise.slowness", float, "How many times longer slow ranks compute."),
        ("--jitter", "noise.jitter", float, "Standard deviation of kernel durations over their mean."),
        ("--seed", "noise.seed", int, "Seed of the choice of slow ranks and of the jitter."),
    ],
    "Training run": [
        ("--steps", "run.steps", float, "Iterations of the whole training run."),
        ("--tokens", "run.tokens", float, "Tokens of the whole training run, in place of --steps."),
        ("--mtbf-hours", "run.mtbf_hours", float, "Mean time between failures of one accelerator."),
        ("--checkpoint-s", "run.checkpoint_s", float, "Time that a checkpoint takes."),
        ("--checkpoint-steps", "run.checkpoint_steps", int, "Iterations between checkpoints."),
        ("--restart-s", "run.restart_s", float, "Time from a failure until training resumes."),
    ],
    "Replay": [("--fold", "fold", str, "Equal ranks to fold into one: all, tensor or none.")],
}
"""Title in the help → option, section.key in a job file, type, help."""
OPTIONS = [one for options in GROUPS.values() for one in options]
DEFAULTS = {
    "model": "JOB.toml's",
    "input-shape": "none; torch modules need it",
    "cluster": "a100-dgx",
    "accelerator": "the cluster's",
    "nccl-tables": "the cluster's",
    "gpus": "8",
    **dict.fromkeys(("tp", "pp", "ep"), "chosen"),
    "etp": "tp where dp can be split over ep, else 1",
    "dispatcher": "with Megatron-Core flex beyond a node of 8, else all-to-all",
    "cp": "1",
    "cp-exchange": "ring",
    "zero": "chosen",
    "split": "the simplest that is fast, where none is given",
    "unit-layers": "1",
    "unit-parameters": "by layers",
    "gather-ahead": "1",
    "shard-group": "all ranks",
    "gather-bytes": "as computed with",
    "batch": "a micro-batch a rank; in pipelines 4 for each stage; 8192 tokens a GPU where the split is chosen",
    "micro-batch": "chosen: fast, and fits into memory",
    "sequence": "the model's",
    "document": "a sample is one document",
    "schedule": "1f1b",
    "virtual-stages": "1 (or chosen with the split)",
    "recompute": "chosen: as little as fits",
    "recompute-every": "1",
    "precision": "chosen: bf16 where the accelerator has it, or fp16, or fp32",
    "optimizer": "adam",
    "optimizer-kernels": "the implementation's",
    "lora": "all weights are trained",
    "lora-targets": "qkv",
    "attention": "the model's",
    "implementation": "chosen: the model's, or by the split",
    "cross-entropy": "the implementation's",
    "gradient-bytes": "2 (4 in fp32 and tf32; in bf16 and below with megatron, where they fit)",
    "allreduce": "auto",
    "hierarchy": "auto",
    "bucket-cap": "the implementation's",
    "codec": "none",
    "loss": "0",
    "switch-jobs": "1",
    "density": "the model's, with --sparse",
    "wire-bytes": "4",
    "slots": "the cluster's",
    "payload": "the cluster's",
    "timeout-s": "the cluster's",
    "stragglers": "0",
    "slowness": "1.5",
    "jitter": "0",
    "seed": "0",
    "loader": "data is always in memory",
    "samples": "1,281,167 (ImageNet)",
    "sample-bytes": "110,000 (ImageNet)",
    "epochs": "3",
    "buffer-bytes": "0",
    "loader-workers": "8",
    "prefetch": "16",
    "read-window": "1",
    "read-gap-bytes": "what is quickest",
    "offload-bucket": "states stay on the device",
    "pruned": "0",
    "activation-ratio": "1",
    "activation-bytes-per-s": "100GB/s",
    "activation-tensor-s": "0",
    "steps": "one iteration",
    "tokens": "one iteration",
    "mtbf-hours": "nothing fails",
    "checkpoint-s": "as storage allows",
    "checkpoint-steps": "Young's and Daly's interval",
    "restart-s": "300",
    "fold": "as much as can be",
}
"""Text of the default of each option."""
FLAGS = {
    "reshard-after-forward": "reshard-after-forward",
    "reduce-each": "reduce-each",
    "master-weights": "master-weights",
    "sequence-parallel": "chosen: with Megatron-Core",
    "async-tp": "no-async-tp",
    "count-embedding": "no-count-embedding",
    "count-loss": "no-count-loss",
    "overlap-experts": "no-overlap-experts",
    "cuda-graphs": "no-cuda-graphs",
    "overlap": "overlap",
    "fuse": "no-fuse",
    "sparse": "dense",
    "ignore-memory": "check-memory",
}
"""Text of the default of each flag."""
BY_NAME = {flags.split("/")[0].lstrip("-").replace("-", "_"): (flags, path, kind) for flags, path, kind, _ in OPTIONS}
"""Name of a parameter → option, section.key in a job file, type."""
KEYS = {name: tuple(path.split(".")) for name, (_, path, _) in BY_NAME.items()}


def job_options(command: Any) -> Any:
    """Add all OPTIONS to a command, grouped in its help."""
    titles = {flags: title for title, options in GROUPS.items() for flags, *_ in options}
    for flags, path, kind, text in reversed(OPTIONS):
        settings = {"is_flag": True} if kind is bool else {"type": type_of(flags, path, kind)}
        shown = (DEFAULTS | FLAGS)[flags.split("/")[0].removeprefix("--")]
        command = option(flags, default=None, show_default=shown, help=text, group=titles[flags], **settings)(command)
    return command


def type_of(flags: str, path: str, kind: Any) -> Any:
    """Return the click type of an option's values: a number in the unit that its key implies."""
    if kind is str:
        return str
    if flags == "--bucket-cap":
        return BUCKET
    key = path.rpartition(".")[2]
    quantity, unit = units.of_name(key)
    if units.of_name(flags)[0] is quantity:
        return Named(key, is_whole=kind is int)
    return Quantity(quantity, unit=unit)


def with_options(table: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Set the keys of the options in `table`, overriding its values, and return it."""
    for name, value in options.items():
        *sections, key = KEYS[name]
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{section}: expected a table, under [{section}]")
        inner[key] = value
    if "model" not in table:
        raise ConfigError("no model: give --model NAME or a job file (switchml emulate list models)")
    return table
