"""Vega, Vega-Lite and vega-embed as one script (0.9 MB), which vl-convert carries.

Not Plotly, the other well-kept library that can be inlined: its script is several times as long in each page, and its
charts need its Python package, where a Vega-Lite chart is plain data that a page, a server and a test can look at.
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
    """The script, which defines `vegaEmbed`. Putting it together takes vl-convert seconds, so it is kept in the cache.
    Raises ImportError without vl-convert."""
    import vl_convert

    path = cache_root() / f"vega-{metadata.version('vl-convert-python')}.js"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        bundle: Any = vl_convert.javascript_bundle  # its types ask for a snippet that it does not need
        text: str = bundle()
    with contextlib.suppress(OSError, ConfigError):  # no place to keep it: the next process puts it together again
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    return text
