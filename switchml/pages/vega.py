"""Vega, Vega-Lite and vega-embed as one script (0.9 MB), bundled by vl-convert.

Plotly, the other well-maintained library that can be inlined, is not used: its script is several times as long in each
page, and its charts need its Python package, while a Vega-Lite chart is plain data that a page, a server and a test can
inspect.
"""

import contextlib
import functools
from importlib import metadata
from typing import Any

from switchml.errors import ConfigError
from switchml.output_files import whole_file
from switchml.runtime.cache import cache_root


@functools.cache
def script() -> str:
    """Return the script, which defines `vegaEmbed`. Bundling takes vl-convert seconds, so the result is cached on disk.
    Raises ImportError without vl-convert."""
    import vl_convert

    path = cache_root() / f"vega-{metadata.version('vl-convert-python')}.js"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        bundle: Any = vl_convert.javascript_bundle  # its type hints require a snippet that it does not need
        text: str = bundle()
    with contextlib.suppress(OSError, ConfigError):  # not cacheable: the next process bundles it again
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    return text
