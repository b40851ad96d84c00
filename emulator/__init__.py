"""Switch, network and training-job emulators.

    surface/    command line, Python API, browser UI, reports
    lab/        benchmarks, predictions compared with measurements, checks of papers' claims
    peers/      a few real ranks, all others emulated
    traces/     profiler traces: reading, joining, what-if changes, diagnosis, optimization
    jobs/       a training job on a cluster: description, plan, graph, replay, result
    cluster/    machines, and the cost models of kernels and collectives
    networks/   network namespaces; packet simulation in virtual time; fault-injection campaigns
    p4switch/   the BMv2-compatible switch

A package imports only those below it. Each package's docstring states its inputs and outputs and where to begin
reading.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
lazy.moved(
    {
        "emulator.diagnosis": "emulator.traces.diagnosis",
        "emulator.faults": "emulator.networks.faults",
        "emulator.netsim": "emulator.networks.netsim",
        "emulator.replay": "emulator.jobs.replay",
        "emulator.testbed": "emulator.networks.testbed",
        "emulator.validation": "emulator.lab.validation",
        "emulator.whatif": "emulator.traces.whatif",
        "emulator.workload": "emulator.jobs.workload",
    }
)
