"""The command line (main.py), and the subcommands that need neither an agent nor the emulator, one per module."""

COMMANDS = {
    "aggregate": ("switchml.cli.aggregate:aggregate", "Run the software aggregator."),
    "control": ("switchml.cli.control:control", "Run the control plane of a P4 switch."),
    "examples": ("switchml.cli.examples:examples", "List and copy examples, experiments, the packet dissector."),
    "docs": ("switchml.cli.docs:docs", "Read the documentation in a browser."),
    "status": ("switchml.cli.status:status", "Show a running aggregator's jobs, pools and counters."),
    "switch-cli": ("switchml.cli.switch_cli:switch_cli", "Control a running P4 switch: BMv2's command line."),
}
"""Subcommands of this package, see `Commands` in main.py; registered in pyproject.toml."""
COMPLETIONS = {"--codec": "switchml.codecs.registry:CODECS"}
"""Option → source of names for shell completion, see `completions` in common.py."""
