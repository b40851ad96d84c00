"""Annotations of autograd nodes: recorded forward, when an operator creates a node, and retrieved backward, when the
node runs. Nodes are identified by autograd's sequence numbers."""

from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Tape(Generic[T]):
    """Annotations of one iteration."""

    def __init__(self) -> None:
        self._of_node: dict[int, T] = {}

    def note(self, what: T) -> None:
        """Annotate the node that the current operator has created."""
        self._of_node[torch.autograd._get_sequence_nr() - 1] = what

    def of_running_node(self) -> T | None:
        """Return the annotation of the node whose backward runs."""
        node: Any = torch._C._current_autograd_node()
        return None if node is None else self._of_node.get(node._sequence_nr())

    def forget(self) -> None:
        """Discard all annotations at the end of an iteration."""
        self._of_node.clear()
