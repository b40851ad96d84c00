"""Optional packages: the extra that installs each, and its use. `switchml doctor` shows the table."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Extra:
    """An extra. `modules`: the import names that it installs. `unlocks`: the features that need it."""

    modules: tuple[str, ...]
    unlocks: str


EXTRAS = {
    "torch": Extra(("torch",), "the torch.distributed backend, peers, --model MODULE:NET"),
    "train": Extra(("torch",), "train, mininet --experiment train, validate real"),
    "torchft": Extra(("torch", "torchft"), "host_agent.torchft: replicas that may die"),
    "plot": Extra(("jinja2", "vl_convert"), "--plot"),
    "report": Extra(("jinja2", "vl_convert"), "--report: pages and plots"),
    "trace": Extra(("msgspec", "scipy"), "trace, bench trace, validate replay and clocks"),
    "optimize": Extra(("optuna",), "trace optimize, where a space is too large to try everything"),
    "fit": Extra(("scipy", "tomlkit"), "validate iterations|throughput --refit"),
    "parquet": Extra(("pyarrow",), "emulate --out FILE.parquet"),
    "dask": Extra(("distributed",), "emulate --engine: sweeps on a Dask cluster"),
    "pandas": Extra(("pandas",), "to_frame()"),
    "polars": Extra(("polars",), 'to_frame("polars")'),
    "p4": Extra(("thrift", "bm_cli", "p4"), "switch-cli, P4Runtime's messages"),
    "bench-codecs": Extra(("torch", "pysz", "zfpy"), "bench codecs beside SZ3 and ZFP"),
    "loading": Extra(("torch", "fsspec", "aiohttp", "h5py"), "PlannedLoader on HTTP and HDF5"),
    "loading-all": Extra(("s3fs", "zarr"), "PlannedLoader on S3 and Zarr"),
    "reproduce": Extra(("jmespath", "simpleeval"), "reproduce: papers' claims"),
    "docs": Extra(("sphinx", "furo", "myst_parser"), "docs: this documentation as a site"),
}
"""Extras by name, as in pyproject.toml; `all` installs all of them except bench-codecs and loading-all."""
_NAMED = {"torch": "train", "scipy": "trace", "jinja2": "report", "vl_convert": "report"}
"""The extra to recommend for modules that several extras install: the one that most commands need."""


def extra_of(module: str) -> str | None:
    """Return the extra that installs a top-level module; None if none does."""
    found = [name for name, extra in EXTRAS.items() if module in extra.modules]
    return _NAMED.get(module) or (found[0] if found else None)


def is_there(module: str) -> bool:
    """Return whether a top-level module can be imported."""
    return importlib.util.find_spec(module) is not None


def require(*modules: str) -> None:
    """Raise ImportError for the first missing module, before any work is done; the command line names the extra that
    installs it."""
    for module in modules:
        if not is_there(module):
            raise ImportError(f"No module named {module!r}", name=module)


def offer(extra: str, missing: str) -> None:
    """Offer to install an extra and restart the command, if run interactively. Returns if the user declines, or if pip
    fails, which then has printed the reason."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    wanted = f"switchml[{extra}]"  # pip finds the installed distribution, and adds the missing packages
    if not click.confirm(f"switchml: this needs {missing}; install {wanted} now?", default=True, err=True):
        return
    if subprocess.run([sys.executable, "-m", "pip", "install", wanted]).returncode == 0:
        os.execv(sys.executable, [sys.executable, "-m", "switchml", *sys.argv[1:]])
