"""`nvidia-smi` for scripts that log its output: lists the emulated GPUs, as with `-L`."""

import functools
import os
import shlex
import subprocess
import sys
from typing import Any


def install(title: str, devices: int) -> None:
    """Replace the program in processes that a script starts; other programs run."""
    begin = subprocess.Popen.__init__
    text = "\n".join(f"GPU {number}: {title} (emulated)" for number in range(devices))

    @functools.wraps(begin)
    def begun(process: Any, args: Any, *more: Any, **options: Any) -> None:
        if _is_meant(args):
            args = [sys.executable, "-S", "-c", f"print({text!r})"]
            options["shell"] = False
        begin(process, args, *more, **options)

    subprocess.Popen.__init__ = begun  # type: ignore[method-assign,assignment]


def _is_meant(args: Any) -> bool:
    if isinstance(args, str):
        try:
            args = shlex.split(args)
        except ValueError:  # the shell's to report
            return False
    words = list(args) if isinstance(args, (list, tuple)) else [args]
    return bool(words) and os.path.basename(os.fsdecode(words[0])) == "nvidia-smi"
