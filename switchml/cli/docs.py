"""`switchml docs`: builds the installed documentation (extra `docs`), once for each version, and opens it."""

import hashlib
import io
import os
import shutil
from pathlib import Path

import click


@click.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Build into this folder, and open nothing."
)
@click.option("--no-open", is_flag=True, help="Print the path of the first page; open no browser.")
def docs(out: Path | None, no_open: bool) -> None:
    """Build this version's documentation and open it in a browser.

    The pages are files: no server runs, search works, and nothing is loaded from the network.
    """
    from switchml import share
    from switchml.runtime.cache import cache_root
    from switchml.terminal import progress

    folder = out or cache_root() / f"docs-{_digest(share.DOCS)}"
    page = folder / "index.html"
    if out or not page.is_file():
        with progress("building the documentation"):
            build(share.DOCS, folder)
    if out or no_open or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        click.echo(page)
    else:
        click.launch(page.as_uri())


def build(source: Path, folder: Path) -> str:
    """Build the site and return Sphinx's warnings. Raises ConfigError if it could not be built."""
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError

    from switchml.errors import ConfigError

    made = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    warnings = io.StringIO()
    try:
        site = Sphinx(source, source, made, made / ".doctrees", "html", status=None, warning=warnings, freshenv=True)
        site.build()
        if site.statuscode:
            raise ConfigError(f"the documentation could not be built: {warnings.getvalue()}")
        shutil.rmtree(made / ".doctrees", ignore_errors=True)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    except SphinxError as error:
        raise ConfigError(f"the documentation could not be built: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return warnings.getvalue()


def _digest(source: Path) -> str:
    """Return a digest of all sources, so that changed ones are rebuilt."""
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(source)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
