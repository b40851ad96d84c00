"""The running ranks of a script: rank 0, and those that exchange messages with it or with each other. Each is a process
(`program.py`) that queries over a pipe when its transfers begin.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from emulator.peers.script.rendezvous import Answer, Arrival, Done, InputDigest, Published, Rendezvous, WaitRequest
from switchml.errors import JobError
from switchml.runtime.children import dying_with_us, how_it_ended

_STDERR = 2
MAX_RANKS = 64
"""Maximum number of processes, each of some 400 MB."""


@dataclass
class Processes:
    """The processes of a script. `request`: see `program.py`, without the fields that differ among ranks.
    `environment`: of each rank."""

    words: Sequence[str]
    request: dict[str, Any]
    environments: list[dict[str, str]]
    folder: Path
    quiet: bool = False
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _pipes: dict[Connection, int] = field(default_factory=dict)

    def run(self, limit_s: float | None) -> dict[int, dict[str, Any]]:
        """Return the outcome of each rank that ran; if one failed, its outcome alone. Raises TimeoutError after
        `limit_s`, JobError if a rank ends without an outcome."""
        self._rendezvous = Rendezvous({0})
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        outcomes: dict[int, dict[str, Any]] = {}
        try:
            self._start(0)
            while self._pipes:
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                ready = wait(list(self._pipes), left_s)
                if not ready:
                    raise TimeoutError
                for pipe in ready:
                    rank = self._pipes[pipe]  # type: ignore[index]
                    if self._is_open(pipe):  # type: ignore[arg-type]
                        continue
                    outcomes[rank] = self._outcome(rank)
                    if "result" not in outcomes[rank]:
                        return {rank: outcomes[rank]}
                self._answer()
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        if differing := len(self._rendezvous.differing):
            what = "collectives of numbers or objects that differ between ranks, which continue with their own"
            for outcome in outcomes.values():
                outcome["result"]["notes"].append(f"{what}: {differing}")
        return dict(sorted(outcomes.items()))

    def _start(self, rank: int) -> None:
        if len(self._processes) == MAX_RANKS:
            raise JobError(f"more than {MAX_RANKS} ranks exchange messages: expected fewer")
        ours, theirs = Pipe()
        request = self.folder / f"request-{rank}.json"
        own = {"rank": rank, "pipe": theirs.fileno(), "result": str(self._result(rank))}
        if self.request["profile"]:
            own["profile"] = str(profile_of(Path(self.request["profile"]), rank))
        request.write_text(json.dumps(self.request | own))
        self._processes[rank] = subprocess.Popen(
            dying_with_us([sys.executable, "-m", "emulator.peers.script.program", str(request), *self.words]),
            env=os.environ | self.environments[rank],
            stdout=_STDERR if self.quiet else None,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._pipes[ours] = rank

    def _result(self, rank: int) -> Path:
        return self.folder / f"result-{rank}.json"

    def _outcome(self, rank: int) -> dict[str, Any]:
        code = self._processes[rank].wait()
        if not self._result(rank).is_file():
            name = "" if len(self._processes) == 1 else f"rank {rank} of "
            script = self.words[1] if self.words[0] == "-m" else self.words[0]
            raise JobError(f"{name}{script} {how_it_ended(code)} without a report")
        found: dict[str, Any] = json.loads(self._result(rank).read_text())
        return found

    def _is_open(self, pipe: Connection) -> bool:
        """Process a message of a rank; return False if the rank has ended."""
        rank = self._pipes[pipe]
        try:
            message: Any = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self._pipes[pipe]
            self._rendezvous.ended(rank)
            return False
        if isinstance(message, Arrival):
            for new in sorted(self._rendezvous.add(message)):
                self._start(new)
        elif isinstance(message, InputDigest):
            self._rendezvous.add_digest(message)
        elif isinstance(message, Published):
            self._rendezvous.publish(message)
        elif isinstance(message, WaitRequest):
            self._rendezvous.wait(message)
        elif isinstance(message, Done):
            self._rendezvous.done(rank)
            self._send(rank, Answer(is_over=self._rendezvous.is_over))
        return True

    def _answer(self) -> None:
        for rank, answer in self._rendezvous.answers():
            self._send(rank, answer)

    def _send(self, rank: int, answer: Answer) -> None:
        pipe = next(pipe for pipe, other in self._pipes.items() if other == rank)
        with suppress(BrokenPipeError, ConnectionResetError):  # the rank has ended, which its pipe reports next
            pipe.send(answer)


def profile_of(path: Path, rank: int) -> Path:
    """Return the file of a rank's profile; `path`: rank 0's, whose name has its number ("rank-0.json.gz")."""
    if rank == 0:
        return path
    name = path.name.replace("rank-0", f"rank-{rank}", 1)
    return path.with_name(name if name != path.name else f"rank-{rank}-{path.name}")
