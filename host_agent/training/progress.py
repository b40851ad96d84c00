"""Progress of the training: on a terminal one live line a phase, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator

from host_agent.training.worker import BACKENDS, Step

PLAIN_LINE_EVERY_S = 2.0
TITLES = {"gloo": "Gloo", "switchml": "in-network"}


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Callable[[Step], None]]:
    """What to call with each Step: the right one for this stderr."""
    if not sys.stderr.isatty():
        yield _lines(steps)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from switchml.terminal import Console

    figures = "loss {task.fields[loss]:>7}  accuracy {task.fields[accuracy]:>7}  {task.fields[rate]:>7} img/s"
    with Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(figures + "  {task.fields[choices]}"),
        console=Console(stderr=True),
    ) as bars:
        tasks = {
            backend: bars.add_task(TITLES[backend], total=steps, loss="–", accuracy="–", rate="–", choices="")
            for backend in BACKENDS
        }

        def show(step: Step) -> None:
            bars.update(
                tasks[step.backend],
                completed=step.step,
                loss=f"{step.loss:.4f}",
                accuracy=f"{step.accuracy:.2%}",
                rate=f"{step.images_per_s:.0f}",
                choices=listed(step.choices),
            )

        yield show


def _lines(steps: int) -> Callable[[Step], None]:
    """A line on stderr at a phase's first and last step and every PLAIN_LINE_EVERY_S in between."""
    next_line = 0.0

    def show(step: Step) -> None:
        nonlocal next_line
        now = time.monotonic()
        if step.step in (1, steps) or now >= next_line:
            next_line = now + PLAIN_LINE_EVERY_S
            print(
                f"{TITLES[step.backend]}: step {step.step}/{steps}, loss {step.loss:.4f}, "
                f"accuracy {step.accuracy:.2%}, {step.images_per_s:.0f} img/s"
                + (f", {listed(step.choices)}" if step.choices else ""),
                file=sys.stderr,
                flush=True,
            )

    return show


def listed(choices: tuple[str, ...]) -> str:
    """The buckets' codecs, equal neighbours combined: "2 x none, topk:ratio=0.01"."""
    runs = [(choice, len(list(group))) for choice, group in itertools.groupby(choices)]
    return ", ".join(f"{count} x {choice}" if count > 1 else choice for choice, count in runs)
