"""Plays a script on an emulated GPU, in a process that is forked from one that has imported torch."""

import json
import os
import textwrap

from emulator.peers.script.launch import ITERATIONS
from tests.support.forks import TORCH, Forked


def play(folder, text, *, world=1, cluster="h100-dgx", **more):
    """What the program of one rank makes of a script. `more`: of its request."""
    script, request, result = folder / "script.py", folder / "request.json", folder / "result.json"
    script.write_text(textwrap.dedent(text))
    given = {
        "cluster": cluster, "accelerator": "", "world": world, "allreduce": "auto", "iterations": ITERATIONS,
        "result": str(result),
    }  # fmt: skip
    request.write_text(json.dumps(given | more))
    ranks = {"RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with open(folder / "out", "w") as out, open(os.devnull) as nothing:
        process = Forked(
            ["-m", "emulator.peers.script.program", str(request), str(script)], preload=TORCH, env=os.environ | ranks,
            stdin=nothing, stdout=out, stderr=out,
        )  # fmt: skip
        process.wait(100)
    assert result.is_file(), (folder / "out").read_text()
    return json.loads(result.read_text())
