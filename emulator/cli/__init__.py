"""Subcommands of `switchml` that need the emulator."""

COMMANDS = {
    "train": ("emulator.cli.train:train", "Train a model whose gradients are summed in-network."),
    "bench": ("emulator.cli.bench.bench:bench", "Measure all-reduces beside Gloo's."),
    "simulate": ("emulator.cli.simulate:simulate", "Run jobs through faults in virtual time; check every sum."),
    "trace": ("emulator.cli.trace.trace:trace", "Capture, read, replay, diagnose and optimize a real job."),
    "validate": ("emulator.cli.validate.validate:validate", "Compare the emulator's predictions with measurements."),
    "switch": ("emulator.cli.switch:switch", "Run a P4 program as simple_switch does."),
    "mininet": ("emulator.cli.mininet:mininet", "Run experiments on networks that Mininet builds."),
    "stf": ("emulator.cli.stf:stf", "Run a P4 test (STF) on the P4 switch, in process."),
    "emulate": ("emulator.cli.emulate:emulate", "Emulate a training job on machines one does not have."),
    "report": ("emulator.cli.report:report", "Compare results that commands printed with --json."),
    "ui": ("emulator.cli.ui:ui", "Serve the emulator in the browser."),
    "peers": ("emulator.cli.peers:peers", "Run a script as one rank of an emulated cluster."),
    "bench allreduce": ("emulator.cli.bench.allreduce:allreduce", "Several ranks on this machine's cores."),
    "bench aggregators": (
        "emulator.cli.bench.aggregators:aggregators",
        "P4 switch, simple_switch, software and Gloo side by side.",
    ),
    "bench network": ("emulator.cli.bench.network:network", "Hosts on slow links, in network namespaces (root)."),
    "bench codecs": ("emulator.cli.bench.codecs:codecs", "Gradient codecs, beside SZ3, ZFP and torch's."),
    "bench switch": ("emulator.cli.bench.switch:switch", "The P4 switch: packets a second on one core."),
    "bench optimizer": ("emulator.cli.bench.speed:optimizer", "Searches for settings: settings tried a minute."),
    "bench replay": ("emulator.cli.bench.speed:replay", "Whole training jobs: replayed ops a second on one core."),
    "bench trace": ("emulator.cli.bench.speed:trace", "Reading profiler traces: megabytes a second, peak memory."),
    "trace info": ("emulator.cli.trace.info:info", "Show what is in a trace: ranks, lanes, collectives, iterations."),
    "trace emulate": ("emulator.cli.trace.emulate:emulate", "Play a workload of Chakra's or SimAI's on a cluster."),
    "trace convert": ("emulator.cli.trace.convert:convert", "Write a trace as Chakra, Chrome JSON or our own format."),
    "trace replay": ("emulator.cli.trace.replay:replay", "Predicted against traced, and with something changed."),
    "trace diagnose": ("emulator.cli.trace.diagnose:diagnose", "Say why a job is slow and what to change."),
    "trace diff": ("emulator.cli.trace.diff:diff", "Compare two runs: what takes longer, what is new."),
    "trace optimize": ("emulator.cli.trace.optimize:optimize", "Find settings with which the job takes less time."),
    "validate all": ("emulator.cli.validate.tables:everything", "All published measurements in a folder, at once."),
    "validate iterations": ("emulator.cli.validate.tables:iterations", "Measured Megatron-DeepSpeed iterations (CSV)."),
    "validate nccl": ("emulator.cli.validate.tables:nccl", "All-reduce tables of nccl-tests."),
    "validate megatron": ("emulator.cli.validate.tables:megatron", "Megatron-LM's published times and memory."),
    "validate throughput": ("emulator.cli.validate.tables:throughput", "Published tokens a second of FSDP jobs (CSV)."),
    "validate intervals": ("emulator.cli.validate.tables:intervals", "Intervals beside predictions, held-out rows."),
    "validate memory": ("emulator.cli.validate.memory:memory", "Published memory of Llama 3, and torch's own here."),
    "validate clocks": ("emulator.cli.validate.measured:clocks", "Shifted clocks, found again from traces."),
    "validate replay": (
        "emulator.cli.validate.measured:replay",
        "Traced runs replayed, as they were and changed (root).",
    ),
    "validate real": (
        "emulator.cli.validate.measured:real",
        "Training runs on this machine, over links of limited rate (root).",
    ),
    "validate peers": ("emulator.cli.validate.measured:peers", "Emulated peers beside all-real runs (root)."),
}
"""As switchml/cli/main.py's `Commands`; pyproject.toml registers it."""
COMPLETIONS = {"--cluster": "emulator.cluster.cluster:clusters", "--model": "emulator.workload.models:models"}
"""As switchml/cli/common.py's `completions`."""
