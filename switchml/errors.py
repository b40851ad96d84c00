"""The errors that this project raises on purpose.

SwitchMLError
 ├── ConfigError            an invalid option or argument (also a ValueError)
 ├── PacketError            bytes that are not a valid packet (also a ValueError)
 ├── PayloadError           bytes that are not a valid payload of a codec (also a ValueError)
 ├── ProgramError           a P4 program (BMv2 JSON) that cannot be loaded or run (also a ValueError)
 ├── ProgramAbort           a P4 program's assert failed while a packet passed; carries BMv2's `.exit_code`
 ├── TraceError             a file that is not a trace of a job, or a damaged one (also a ValueError)
 ├── GraphError             an inconsistent graph of a training job, or invalid costs (also a ValueError)
 ├── EmulationError         an emulated job that cannot continue
 │    ├── Deadlock          ops that wait for each other forever: `.waiting`
 │    ├── OutOfMemory       a job that does not fit into its accelerators: `.needed_bytes`, `.parts`
 │    └── BudgetSpent       a replay that exceeded its events or seconds: `.events`, `.now_s`
 ├── ControlError           an invalid request of a switch's control plane: `.operation`, `.code`
 ├── UnsupportedTensor      a dtype, device or layout that cannot be all-reduced (also a TypeError)
 ├── SumOverflow            an integer sum that does not fit its type (also an OverflowError)
 ├── LoadingError           samples that cannot be read: `.samples` (also an OSError)
 ├── JoinError              the aggregator refused this rank, or could not be reached
 └── JobError               a running job that cannot continue (also a RuntimeError)
      ├── PeerLost          another rank died, left early or stopped answering: `.ranks`
      ├── AggregatorLost    the aggregator became unreachable
      ├── RanksDisagree     the ranks did not call the same all-reduce
      ├── LeftBehind        the others went on without this rank, further than results are kept
      └── CollectiveTimeout an all-reduce did not finish in time: `.ranks`

A message says what was wrong, what was expected, and where to look.
"""

LONGEST_MESSAGE = 4000
"""Characters of a message; of a longer one, which quotes a damaged file, the middle is left out."""


class SwitchMLError(Exception):
    """Base of every error below."""

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= LONGEST_MESSAGE:
            return text
        start, end = text[: LONGEST_MESSAGE * 3 // 4], text[-LONGEST_MESSAGE // 5 :]
        return f"{start} … {len(text) - len(start) - len(end):,} characters … {end}"


class ConfigError(SwitchMLError, ValueError):
    """An invalid option or argument."""


class PacketError(SwitchMLError, ValueError):
    """Bytes that are not a valid packet."""


class PayloadError(SwitchMLError, ValueError):
    """Bytes that are not a valid payload of a codec."""


class ProgramError(SwitchMLError, ValueError):
    """A P4 program (BMv2 JSON) that cannot be loaded or run; names the object and its line in the P4 source."""


class GraphError(SwitchMLError, ValueError):
    """An inconsistent graph of a training job, or invalid costs; names the ops and ranks concerned."""


class TraceError(SwitchMLError, ValueError):
    """A file that is not a trace of a job, or a damaged or incomplete one; names the file and the place in it."""


class EmulationError(SwitchMLError):
    """An emulated job that cannot continue."""


class Deadlock(EmulationError):
    """Ops that wait for each other forever; `waiting` has a line for each collective or op that others wait for."""

    def __init__(self, message: str, waiting: tuple[str, ...] = ()):
        super().__init__(message)
        self.waiting = tuple(waiting)


class OutOfMemory(EmulationError):
    """A job that does not fit into its accelerators' memory; `parts` has the bytes of weights, activations and more."""

    def __init__(self, message: str, needed_bytes: float = 0.0, parts: dict[str, float] | None = None):
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.parts = dict(parts or {})


class BudgetSpent(EmulationError):
    """A replay that exceeded its budget of events or wall-clock seconds; `now_s` is the replay's own time then."""

    def __init__(self, message: str, events: int = 0, now_s: float = 0.0):
        super().__init__(message)
        self.events = events
        self.now_s = now_s


class ProgramAbort(SwitchMLError):
    """A P4 program's assert or assume failed, or log_msg had invalid arguments: where BMv2 ends the process.
    `exit_code` is the exit code of BMv2's process in that case (-6: SIGABRT)."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class ControlError(SwitchMLError):
    """An invalid request of a switch's control plane. `operation` and `code` are named as in BMv2's Thrift interface:
    exception Invalid{operation}Operation with the code {code}, for example "Table" and "TABLE_FULL"."""

    def __init__(self, operation: str, code: str, message: str = ""):
        super().__init__(message or code)
        self.operation = operation
        self.code = code


class UnsupportedTensor(SwitchMLError, TypeError):
    """A dtype, device or memory layout that cannot be all-reduced."""


class SumOverflow(SwitchMLError, OverflowError):
    """Integer sums that do not fit their type; `misfits` counts them."""

    def __init__(self, message: str, misfits: int = 0):
        super().__init__(message)
        self.misfits = misfits


class LoadingError(SwitchMLError, OSError):
    """Samples of a data set that cannot be read, after every attempt; `samples` has their numbers."""

    def __init__(self, message: str, samples: tuple[int, ...] = ()):
        super().__init__(message)
        self.samples = tuple(samples)


class JoinError(SwitchMLError):
    """The aggregator refused this rank, or could not be reached."""


class JobError(SwitchMLError, RuntimeError):
    """A running job that cannot continue."""


class _RanksError(JobError):
    """Base of job errors caused by certain ranks, which `ranks` lists."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)


class PeerLost(_RanksError):
    """Another rank died, left early or stopped answering; `ranks` lists the ranks."""


class AggregatorLost(JobError):
    """The aggregator became unreachable."""


class RanksDisagree(JobError):
    """The ranks did not call the same all-reduce."""


class LeftBehind(JobError):
    """In a job with a deadline, the others continued without this rank, and the results that it missed are no longer
    available."""


class CollectiveTimeout(_RanksError, TimeoutError):
    """An all-reduce did not finish in time; `ranks` lists the ranks that it waited for."""
