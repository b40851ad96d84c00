"""The programs of tests/programs: their JSON is what p4c makes of their text."""

import importlib.util
import json
import subprocess

import pytest

from tests.support.p4_programs import PATHS, SOURCES

INCLUDED = {"ethernet", "plain"}
NAMES = sorted(path.stem for path in SOURCES.glob("*.p4") if path.stem not in INCLUDED)
COMPILER_VERSION = "1.2.5.16"


def test_every_json_has_its_program():
    assert sorted(PATHS) == NAMES


def test_generated_programs_are_what_the_generator_writes():
    spec = importlib.util.spec_from_file_location("generate_agg", SOURCES / "generate_agg.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    for style in ("unrolled", "wide"):
        for lanes in (64, 256):
            assert (SOURCES / f"agg_{style}_{lanes}.p4").read_text() == generator.program(style, lanes)


@pytest.mark.needs("p4c-bm2-ss")
@pytest.mark.parametrize("name", NAMES)
def test_json_is_what_p4c_writes(name, tmp_path, require_program):
    """Another version of p4c may lower a program otherwise, so only the one that wrote the JSON is asked."""
    compiler = require_program("p4c-bm2-ss")
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    version = done.stdout + done.stderr
    if COMPILER_VERSION not in version:
        pytest.skip(f"the JSON is from p4c-bm2-ss {COMPILER_VERSION}; this one says {version.strip()!r}")
    subprocess.run([compiler, f"{name}.p4", "-o", tmp_path / "out.json"], cwd=SOURCES, check=True, capture_output=True)
    assert _portable(tmp_path / "out.json") == _portable(PATHS[name])


def _portable(path):
    """The JSON without the places of files that lie outside tests/programs."""

    def clean(node):
        if isinstance(node, dict):
            return {k: clean(v) for k, v in node.items() if not (k == "filename" and str(v).startswith("/"))}
        return [clean(v) for v in node] if isinstance(node, list) else node

    data = clean(json.loads(path.read_text()))
    data.pop("program", None)
    return data
