"""Parses launcher command lines: the script they start, its arguments and environment, and the number of processes."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchml.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """A parsed command. `script`: a path, or "-m" and a module, and its arguments. `processes`: the launcher's total
    over all nodes; 0: no launcher. `environment`: variables that the launcher adds."""

    script: tuple[str, ...]
    processes: int = 0
    environment: dict[str, str] = field(default_factory=dict)


def read_command(words: Sequence[str], per_node: int) -> Command:
    """Parse a command of torchrun, accelerate launch, python, a script or a program that is one, for nodes of
    `per_node` accelerators. Raises ConfigError for others."""
    first, *rest = words
    name = Path(first).name
    if name.startswith("python"):
        while rest[:1] and rest[0] in ("-u", "-O", "-B"):
            rest = rest[1:]
        if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            return _torchrun(rest[2:], per_node)
        if rest[:2] == ["-m", "accelerate.commands.launch"]:
            return _accelerate(rest[2:], per_node)
        if not rest:
            raise ConfigError("python: no script follows")
        return Command(tuple(rest))
    if name == "torchrun":
        return _torchrun(rest, per_node)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _accelerate(rest[1:], per_node)
    if first == "-m" or first.endswith(".py"):
        return Command(tuple(words))
    if name in _LAUNCHERS:
        raise ConfigError(
            f"{shlex.join(words)}: {name} starts processes of its own, which are not emulated; expected torchrun "
            "and the script that it starts"
        )
    program = shutil.which(first)
    if program is not None and _is_python(Path(program)):
        return Command((program, *rest))
    raise ConfigError(
        f"{shlex.join(words)}: expected torchrun, accelerate launch, python, a script (.py) or a program in Python"
    )


_LAUNCHERS = ("colossalai", "composer", "deepspeed", "fabric", "horovodrun", "lightning", "ray", "tune")
"""Programs in Python that start processes of their own, which would not be emulated."""


def _is_python(program: Path) -> bool:
    """Return whether a program is a script for Python, as pip installs for packages' commands: Python's path is in its
    first line, or if too long for that, in the second."""
    with program.open("rb") as lines:
        first, second = lines.readline(1024), lines.readline(1024)
    return first.startswith(b"#!") and (b"python" in first or second.startswith(b"'''exec' "))


def _torchrun(words: Sequence[str], per_node: int) -> Command:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(list(words))
    processes, nodes = str(given.nproc_per_node), str(given.nnodes).partition(":")[0]
    if not nodes.isdigit():
        raise ConfigError(f"torchrun --nnodes {given.nnodes}: expected a number")
    script = _script(given.module, given)
    return Command(script, (int(processes) if processes.isdigit() else per_node) * int(nodes))


def _accelerate(words: Sequence[str], per_node: int) -> Command:
    """Parse with accelerate's own parser, which also reads the user's configuration; only options passed to the script
    matter."""
    try:
        from accelerate.commands import launch
        from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
    except ImportError:
        raise ConfigError("accelerate launch: accelerate is not installed in this Python") from None
    given = launch.launch_command_parser().parse_args(list(words))
    for option in ("use_deepspeed", "use_megatron_lm", "tpu", "cpu"):
        if getattr(given, option, False):
            raise ConfigError(f"accelerate launch --{option}: expected GPUs under DDP or FSDP")
    if given.num_processes is None and given.config_file is None:
        given.num_processes = per_node * (given.num_machines or 1)
    is_single = given.num_processes == 1 and not given.use_fsdp
    given.multi_gpu = given.multi_gpu or not (given.use_fsdp or is_single)
    try:
        chosen = launch._validate_launch_command(given)[0]
    except ValueError as error:
        raise ConfigError(f"accelerate launch: {error}") from None
    chosen.main_process_port = 0
    wanted = prepare_simple_launcher_cmd_env(chosen)[1] if is_single else prepare_multi_gpu_env(chosen)
    added = {key: value for key, value in wanted.items() if os.environ.get(key) != value}
    return Command(_script(chosen.module, chosen), 0 if is_single else int(chosen.num_processes), added)


def _script(is_module: bool, given: Any) -> tuple[str, ...]:
    return (("-m",) if is_module else ()) + (given.training_script, *given.training_script_args)
