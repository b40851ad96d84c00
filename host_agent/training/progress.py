"""Progress of the training: on a terminal one live line a phase, elsewhere a line every few seconds."""

from __future__ import annotations

import itertools
import sys
import time
from types import TracebackType

from host_agent.training.worker import BACKENDS, Step

PLAIN_LINE_EVERY_S = 2.0
TITLES = {"gloo": "Gloo", "switchml": "in-network"}


class TerminalProgress:
    """One line a phase with bar, step, loss, accuracy and speed, drawn by rich on stderr."""

    def __init__(self, steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]:>7}  accuracy {task.fields[accuracy]:>7}  {task.fields[rate]:>7} img/s  "
                "{task.fields[choices]}"
            ),
            console=Console(stderr=True),
        )
        self._tasks = {
            backend: self._progress.add_task(TITLES[backend], total=steps, loss="–", accuracy="–", rate="–", choices="")
            for backend in BACKENDS
        }

    def __enter__(self) -> TerminalProgress:
        self._progress.start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, step: Step) -> None:
        self._progress.update(
            self._tasks[step.backend],
            completed=step.step,
            loss=f"{step.loss:.4f}",
            accuracy=f"{step.accuracy:.2%}",
            rate=f"{step.images_per_s:.0f}",
            choices=listed(step.choices),
        )


class PlainProgress:
    """A line on stderr at a phase's first and last step and every PLAIN_LINE_EVERY_S in between."""

    def __init__(self, steps: int):
        self._steps = steps
        self._next_line = 0.0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        pass

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if step.step in (1, self._steps) or now >= self._next_line:
            self._next_line = now + PLAIN_LINE_EVERY_S
            print(
                f"{TITLES[step.backend]}: step {step.step}/{self._steps}, loss {step.loss:.4f}, "
                f"accuracy {step.accuracy:.2%}, {step.images_per_s:.0f} img/s"
                + (f", {listed(step.choices)}" if step.choices else ""),
                file=sys.stderr,
                flush=True,
            )


def listed(choices: tuple[str, ...]) -> str:
    """The buckets' codecs, equal neighbours combined: "2 x none, topk:ratio=0.01"."""
    runs = [(choice, len(list(group))) for choice, group in itertools.groupby(choices)]
    return ", ".join(f"{count} x {choice}" if count > 1 else choice for choice, count in runs)


def progress(steps: int) -> TerminalProgress | PlainProgress:
    """The right one for this stderr; call it with each Step, inside `with`."""
    return TerminalProgress(steps) if sys.stderr.isatty() else PlainProgress(steps)
