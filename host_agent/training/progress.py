"""Progress of the training: a live line on a terminal."""

import contextlib
import itertools
from collections.abc import Callable, Iterator

from host_agent.training.worker import Step
from switchml import terminal

TITLES = {"gloo": "Gloo", "switchml": "in-network"}


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Callable[[Step], None]]:
    """Show progress; yields the function to call with each Step."""
    with terminal.progress("starting", total=steps) as task:
        yield lambda step: task.update(step.step, described(step, steps), what=TITLES[step.backend])


def described(step: Step, steps: int) -> str:
    """One line that describes a step."""
    line = f"{step.step}/{steps}, loss {step.loss:.4f}, accuracy {step.accuracy:.1%}, {step.images_per_s:.0f} img/s"
    return f"{line}, {listed(step.choices)}" if step.choices else line


def listed(choices: tuple[str, ...]) -> str:
    """The buckets' codecs, consecutive equal ones combined: "2 x none, topk:ratio=0.01"."""
    runs = [(choice, len(list(group))) for choice, group in itertools.groupby(choices)]
    return ", ".join(f"{count} x {choice}" if count > 1 else choice for choice, count in runs)
