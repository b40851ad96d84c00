"""Subcommands of `switchml` that need an agent but no emulator, one per file."""

COMMANDS = {
    "doctor": ("host_agent.cli.doctor:doctor", "Check what this machine can do and what it lacks."),
    "trace capture": ("host_agent.cli.trace_capture:capture", "Run a script and profile every rank of it."),
}
"""Command table in the format of switchml/cli/main.py's `Commands`; registered by pyproject.toml."""
