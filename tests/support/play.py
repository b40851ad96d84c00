"""Plays a script on an emulated GPU, in a process that is forked from one that has imported torch."""

import json
import os
import textwrap

from tests.support.forks import TORCH, Forked


def play(folder, text, *, world=1, cluster="h100-dgx"):
    """What the program of one rank makes of a script."""
    script, request, result = folder / "script.py", folder / "request.json", folder / "result.json"
    script.write_text(textwrap.dedent(text))
    request.write_text(json.dumps({"cluster": cluster, "world": world, "allreduce": "auto", "result": str(result)}))
    ranks = {"RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with open(folder / "out", "w") as out, open(os.devnull) as nothing:
        process = Forked(
            ["-m", "emulator.peers.script.program", str(request), str(script)],
            preload=TORCH,
            env=os.environ | ranks,
            stdin=nothing,
            stdout=out,
            stderr=out,
        )
        process.wait(100)
    assert result.is_file(), (folder / "out").read_text()
    return json.loads(result.read_text())
