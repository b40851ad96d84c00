"""Whether the ranks of a host sum first: what callers may say."""

from __future__ import annotations

import os

from switchml.errors import ConfigError

HIERARCHIES = ("none", "node")


def resolve(choice: str | None) -> tuple[str, str]:
    """(hierarchy, name of this host) of what a caller, or else SWITCHML_HIERARCHY, says: "none", "node" or
    "node:NAME". Raises ConfigError."""
    text = choice or os.environ.get("SWITCHML_HIERARCHY") or "none"
    mode, _, name = text.partition(":")
    if mode not in HIERARCHIES or (name and mode == "none"):
        raise ConfigError(f"hierarchy {text!r}: expected {', '.join(HIERARCHIES)} or node:NAME-OF-THIS-HOST")
    return mode, name
