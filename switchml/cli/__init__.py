"""The command line (main.py), and the subcommands that need neither an agent nor the emulator, one a file."""

COMMANDS = {
    "aggregate": ("switchml.cli.aggregate:aggregate", "Run the software aggregator."),
    "control": ("switchml.cli.control:control", "Run the control plane of a P4 switch."),
    "examples": ("switchml.cli.examples:examples", "List and copy examples, experiments, the packet dissector."),
    "docs": ("switchml.cli.docs:docs", "Read the documentation in a browser."),
    "status": ("switchml.cli.status:status", "Show a running aggregator's jobs, pools and counters."),
}
"""As main.py's `Commands`; pyproject.toml registers it."""
COMPLETIONS = {"--codec": "switchml.codecs.registry:CODECS"}
"""Option → the names that the shell completes, as common.py's `completions`."""
