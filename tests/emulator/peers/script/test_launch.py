"""Command lines as one types them on a cluster."""

import pytest

from emulator.peers.script.commands import Command, read_command
from switchml.errors import ConfigError

pytest.importorskip("torch")

READ = {
    "train.py --layers 2": Command(("train.py", "--layers", "2")),
    "python -u train.py": Command(("train.py",)),
    "python3.12 -m pkg.train x": Command(("-m", "pkg.train", "x")),
    "torchrun train.py": Command(("train.py",), 1),
    "torchrun --nproc-per-node 4 --nnodes 2 train.py --lr 1": Command(("train.py", "--lr", "1"), 8),
    "torchrun --nproc-per-node gpu --nnodes 2:4 -m pkg": Command(("-m", "pkg"), 16),
    "python -m torch.distributed.run --nproc_per_node=2 train.py": Command(("train.py",), 2),
}


@pytest.mark.parametrize("words", READ)
def test_commands(words):
    assert read_command(words.split(), per_node=8) == READ[words]


@pytest.mark.parametrize("words", ["mpirun train.py", "python", "torchrun --nnodes many train.py"])
def test_others_are_refused(words):
    with pytest.raises(ConfigError):
        read_command(words.split(), per_node=8)


START = {
    "#!/usr/bin/env python3": True,
    "#!/bin/sh\n'''exec' \"/a/long/path/python3\" \"$0\" \"$@\"\n' '''": True,
    "#!/bin/sh\npython train.py": False,
}


def test_other_launchers(tmp_path, monkeypatch):
    program = tmp_path / "deepspeed"
    program.write_text("#!/usr/bin/env python3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="deepspeed starts processes of its own"):
        read_command(["deepspeed", "train.py"], per_node=8)


@pytest.mark.parametrize("start", START)
def test_programs_of_packages(tmp_path, monkeypatch, start):
    """A program on the path is run if it is a script for Python, as are those that pip installs."""
    program = tmp_path / "yolo"
    program.write_text(f"{start}\nprint()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if START[start]:
        assert read_command(["yolo", "train", "epochs=1"], per_node=8) == Command((str(program), "train", "epochs=1"))
    else:
        with pytest.raises(ConfigError, match="yolo train: expected torchrun"):
            read_command(["yolo", "train"], per_node=8)


def test_accelerate_launch():
    pytest.importorskip("accelerate")
    words = "accelerate launch --num_processes 16 --num_machines 2 --machine_rank 0 --main_process_ip 127.0.0.1"
    read = read_command(f"{words} --mixed_precision bf16 train.py --lr 1".split(), per_node=8)
    assert (read.script, read.processes) == (("train.py", "--lr", "1"), 16)
    assert read.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert read_command(["accelerate", "launch", "train.py"], per_node=8).processes == 8
    single = read_command(
        ["accelerate", "launch", "--num_processes", "1", "--mixed_precision", "bf16", "train.py"], per_node=8
    )
    assert (single.script, single.processes) == (("train.py",), 0)  # no process group
    assert single.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    with pytest.raises(ConfigError, match="--use_deepspeed: expected GPUs under DDP or FSDP"):
        read_command(["accelerate", "launch", "--use_deepspeed", "train.py"], per_node=8)
