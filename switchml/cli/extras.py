"""Optional packages: which extra of ours installs each, and what it is for. `switchml doctor` shows the table."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Extra:
    """`modules`: what it installs, by the names that are imported. `unlocks`: what works only with it."""

    modules: tuple[str, ...]
    unlocks: str


EXTRAS = {
    "torch": Extra(("torch",), "the torch.distributed backend, peers, --model MODULE:NET"),
    "train": Extra(("torch",), "train, mininet --experiment train, validate real"),
    "torchft": Extra(("torch", "torchft"), "host_agent.torchft: replicas that may die"),
    "plot": Extra(("matplotlib",), "--plot"),
    "report": Extra(("jinja2", "vl_convert"), "--report: HTML pages"),
    "trace": Extra(("msgspec", "scipy"), "trace, bench trace, validate replay and clocks"),
    "optimize": Extra(("optuna",), "trace optimize, where a space is too large to try everything"),
    "fit": Extra(("scipy", "tomlkit"), "validate iterations|throughput --refit"),
    "parquet": Extra(("pyarrow",), "emulate --out FILE.parquet"),
    "dask": Extra(("distributed",), "emulate --engine: sweeps on a Dask cluster"),
    "pandas": Extra(("pandas",), "to_frame()"),
    "polars": Extra(("polars",), 'to_frame("polars")'),
    "p4": Extra(("thrift", "p4"), "simple_switch_CLI, P4Runtime's messages"),
    "bench-codecs": Extra(("torch", "pysz", "zfpy"), "bench codecs beside SZ3 and ZFP"),
    "loading": Extra(("torch", "fsspec", "aiohttp", "h5py"), "PlannedLoader on HTTP and HDF5"),
    "loading-all": Extra(("s3fs", "zarr"), "PlannedLoader on S3 and Zarr"),
    "reproduce": Extra(("jmespath", "simpleeval"), "reproduce: papers' claims"),
    "docs": Extra(("sphinx", "furo", "myst_parser"), "docs: this documentation as a site"),
}
"""By name, as in pyproject.toml; `all` installs all of them but bench-codecs and loading-all."""
_NAMED = {"torch": "train", "scipy": "trace"}
"""Of modules that several extras install, the extra to name: with torch comes what most commands that use it need."""


def extra_of(module: str) -> str | None:
    """The extra that installs a top-level module; None: none does."""
    found = [name for name, extra in EXTRAS.items() if module in extra.modules]
    return _NAMED.get(module) or (found[0] if found else None)


def is_there(module: str) -> bool:
    """Whether a top-level module can be imported."""
    return importlib.util.find_spec(module) is not None


def require(*modules: str) -> None:
    """Raise ImportError for the first module that is missing, before any work is done: the command line names the extra
    that installs it."""
    for module in modules:
        if not is_there(module):
            raise ImportError(f"No module named {module!r}", name=module)


def offer(extra: str, missing: str) -> None:
    """To somebody at a terminal: install an extra now, and do the command over. Returns if he does not want it, or if
    pip fails, which then has said why."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    wanted = f"switchml[{extra}]"  # pip finds the installed distribution, and adds what the extra lacks
    if not click.confirm(f"switchml: this needs {missing}; install {wanted} now?", default=True, err=True):
        return
    if subprocess.run([sys.executable, "-m", "pip", "install", wanted]).returncode == 0:
        os.execv(sys.executable, [sys.executable, "-m", "switchml", *sys.argv[1:]])
