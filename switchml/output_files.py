"""Files that commands write: each is whole or not there, whatever happens meanwhile."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from switchml.errors import ConfigError

_IN_PLACE = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""/dev/stdout and the like: what they lead to is not ours to replace."""


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The path of a file beside `path`, to be written in the block; it takes the name `path` when the block ends, and
    goes if that fails. Its name ends as `path` does. Pipes and devices are written in place.

    Raises ConfigError in place of OSError: no such folder, a full disk.
    """
    path = Path(path)
    is_special = path.parent in _IN_PLACE or (path.exists() and not path.is_file())
    target = path if is_special else path.resolve()  # a link stays one
    part = target if is_special else target.with_name(f".{os.getpid()}.{target.name}")
    if not is_special:
        _remove_left(target)
    try:
        yield part
        if not is_special:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    finally:
        if not is_special:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _remove_left(target: Path) -> None:
    """Remove the parts of `target` whose processes were killed."""
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            number, _, name = path.name.removeprefix(".").partition(".")
            is_part = path.name.startswith(".") and number.isdecimal() and name == target.name
            if is_part and not Path("/proc", number).exists():
                path.unlink()
