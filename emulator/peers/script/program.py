"""The process of one rank: `python -m emulator.peers.script.program REQUEST SCRIPT ARGUMENTS`, or `-m MODULE ARGUMENTS`
instead of SCRIPT. REQUEST is a JSON file with the cluster, the rank and the path of the result.
"""

import atexit
import json
import os
import re
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import emulator
from emulator.cluster import cluster as clusters
from emulator.peers.run import run
from emulator.peers.script import profile
from emulator.peers.script.channels import Finished, Ranks
from emulator.peers.script.result import result_of
from emulator.peers.script.session import Session
from switchml.errors import SwitchMLError

_OTHERS = (str(Path(emulator.__file__).parent), str(Path(traceback.__file__).parent))
"""Folders of this package and of Python's library."""


def main(arguments: list[str]) -> None:
    """Run the script and write its outcome."""
    import torch

    request = json.loads(Path(arguments[0]).read_text())
    script = arguments[1:]
    name = script[1] if script[0] == "-m" else script[0]
    pipe = Connection(request["pipe"]) if "pipe" in request else None
    ranks = Ranks(request.get("rank", 0), pipe)
    machine = clusters.equipped(request["cluster"], request["accelerator"])
    outcome: dict[str, Any]
    try:
        session = Session(machine, request["world"], ranks, request["allreduce"], request["iterations"])
        try:
            with session.device:
                run(script)
        except Finished:
            pass
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise
        session.end()
        outcome = {"result": result_of(session, name).to_json()}
        if request.get("profile"):
            profile.write(session, Path(request["profile"]))
    except torch.OutOfMemoryError as error:
        outcome = {"full": str(error), "where": _where(error), "memory": session.ledger.at_peak()}
    except SwitchMLError as error:
        outcome = {"error": str(error), "where": _where(error)}
    except (KeyboardInterrupt, SystemExit):
        raise
    except NotImplementedError as error:
        traceback.print_exc()
        outcome = {"error": _unsupported(str(error)), "where": _where(error)}
    except BaseException as error:  # errors of torch.distributed.checkpoint are not Exceptions
        traceback.print_exc()
        text = str(error) or traceback.extract_tb(error.__traceback__)[-1].line  # of an assertion, what it says
        message = re.sub(r"\x1b\[[\d;]*m", "", f"{type(error).__name__}: {text}")  # without colors
        outcome = {"error": _of_triton(error) or message.strip(), "where": _where(error)}
    Path(request["result"]).write_text(json.dumps(outcome))


def _unsupported(message: str) -> str:
    """Return a one-sentence message for operators without a rule in torch."""
    found = re.search(r"HigherOrderOperator (\w+)", message)
    if found is None:
        return f"NotImplementedError: {message}".strip()
    return f"{found[1]} can't be emulated: what its kernel does depends on code that it is given"


def _of_triton(error: BaseException) -> str | None:
    """Return a one-sentence message if Triton raised the error, which looks for a driver when it launches a kernel."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "run" and Path(frame.f_code.co_filename).parts[-3:-1] == ("triton", "runtime"):
            kernel: Any = frame.f_locals.get("self")
            while hasattr(kernel, "fn"):  # of an autotuner or heuristics, then of the compiled function
                kernel = kernel.fn
            name = getattr(kernel, "__name__", "")
            return f"Triton kernel {name} can't be emulated: what it does depends on code that torch does not see"
    return None


def _where(error: BaseException) -> str:
    """Return the innermost line of the user's code in an error's traceback: file:line."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((*_OTHERS, "<frozen")) and "site-packages" not in frame.filename:
            found = f"{frame.filename}:{frame.lineno}"
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Python would take seconds to unload torch
