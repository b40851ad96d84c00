"""Transcripts of simple_switch_CLI: files with its commands, each behind the prompt, and what it answered.

`python -m tests.peers.cli NAME…` writes the answers of the real simple_switch into the named files of
emulator/p4switch/thrift/transcripts; `simple_switch` and `simple_switch_CLI` must be on PATH.
"""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.p4_programs import PATHS

TESTS = Path(__file__).parents[1]
TRANSCRIPTS = TESTS / "emulator" / "p4switch" / "thrift" / "transcripts"
PROMPT = "RuntimeCmd: "


def names() -> list[str]:
    """Transcripts; each is about the program of that name."""
    return sorted(path.stem for path in TRANSCRIPTS.glob("*.txt"))


def read(name: str) -> list[tuple[str, str]]:
    """(command, answer) pairs of a transcript."""
    parts = (TRANSCRIPTS / f"{name}.txt").read_text().split(PROMPT)[1:]
    return [tuple(part.split("\n", 1)) for part in parts]


def ask(cli: str | list[str], thrift_port: int, commands: list[str]) -> list[tuple[str, str]]:
    """Give commands to simple_switch_CLI, or to another CLI's command line; (command, answer) pairs."""
    done = subprocess.run(
        [*([cli] if isinstance(cli, str) else cli), "--thrift-port", str(thrift_port)],
        input="\n".join([*commands, ""]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    answers = done.stdout.split(PROMPT)[1:-1]
    assert len(answers) == len(commands), done.stdout
    return list(zip(commands, answers, strict=True))


def real(switch: str, cli: str, name: str) -> list[tuple[str, str]]:
    """What the real simple_switch answers to a transcript's commands."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [switch, "--thrift-port", str(port), "--device-id", str(port), str(PATHS[name])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        return ask(cli, port, [command for command, _ in read(name)])
    finally:
        process.kill()
        process.wait()


def main() -> None:
    for name in sys.argv[1:]:
        answers = real(shutil.which("simple_switch"), shutil.which("simple_switch_CLI"), name)
        text = "".join(f"{PROMPT}{command}\n{answer}" for command, answer in answers)
        (TRANSCRIPTS / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
