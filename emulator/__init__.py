"""The switch, the network and the training job in software.

    surface/    the command line, the Python API, the browser, reports
    lab/        benchmarks, predictions beside measurements, papers' claims
    peers/      a few ranks run for real, all others emulated
    traces/     what profilers wrote: read, joined, changed, diagnosed, optimized
    jobs/       a training job on a cluster: description, plan, graph, replay, result
    cluster/    machines, and what kernels and collectives cost on them
    networks/   this kernel's namespaces; packets in virtual time; clusters under drawn faults
    p4switch/   the BMv2-compatible switch

A room imports those below it. Each room's docstring says what comes in, what goes out, and where to begin reading.
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
