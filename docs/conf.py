"""How Sphinx builds the site: `switchml docs`, or `sphinx-build -W docs FOLDER`. Nothing is loaded from the network."""

import json

from docutils.parsers.rst import Directive
from myst_parser.parsers.sphinx_ import MystParser

from switchml import __version__

project = "switchml"
author = "the switchml authors"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
with_reference = not tags.has("without_reference")  # noqa: F821 - Sphinx defines `tags`
if with_reference:  # its imports are most of the time of a build
    extensions.append("sphinx.ext.autodoc")
html_theme = "furo"
html_title = f"switchml {release}"
html_static_path = ["_static"]
html_css_files = ["wide-tables.css"]
html_show_copyright = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
# Pages link to files of the checkout, too, as GitHub shows them; and examples in JSON may have comments or an ellipsis.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]

# The reference is made of docstrings. They are Markdown, and torch is not imported for them.
autodoc_mock_imports = ["torch"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True}


def _as_markdown(app, what, name, obj, options, lines):
    """Docstrings are plain text with Markdown's backquotes: these become literals, and what is indented a block."""
    text = "\n".join(lines)
    lines[:] = text.replace("``", "`").replace("`", "``").replace("*", "\\*").replace("|", "\\|").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("    ") and number and not lines[number - 1].strip() and lines[number - 2].endswith(":"):
            lines[number - 2] += ":"


class _Notebook(MystParser):
    """Jupyter notebooks, shown with the outputs that their files hold."""

    supported = ("notebook",)

    def parse(self, inputstring, document):
        super().parse("\n\n".join(map(_cell, json.loads(inputstring)["cells"])), document)


def _cell(cell):
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output):
    shown = output.get("data", {})
    if "text/html" in shown:
        return "```{raw} html\n" + "".join(shown["text/html"]) + "\n```"
    return "```text\n" + "".join(shown.get("text/plain", output.get("text", ""))) + "\n```"


class _Nothing(Directive):
    """Stands in for automodule."""

    required_arguments = 1
    option_spec = {"exclude-members": str}

    def run(self):
        return []


def setup(app):
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(_Notebook)
    if with_reference:
        app.connect("autodoc-process-docstring", _as_markdown)
    else:
        app.add_directive("automodule", _Nothing)
