"""What is known of the nodes of autograd's tape: noted forward, when an operator makes one, and asked for backward,
when it runs. Autograd numbers its nodes, and the backward pass says which number it is at."""

from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Tape(Generic[T]):
    """Notes of one iteration."""

    def __init__(self) -> None:
        self._of_node: dict[int, T] = {}

    def note(self, what: T) -> None:
        """Of the node that the present operator has made."""
        self._of_node[torch.autograd._get_sequence_nr() - 1] = what

    def of_running_node(self) -> T | None:
        """What was noted of the node whose backward runs."""
        node: Any = torch._C._current_autograd_node()
        return None if node is None else self._of_node.get(node._sequence_nr())

    def forget(self) -> None:
        """The iteration has ended."""
        self._of_node.clear()
