"""The P4 programs of the tests, by name. Sources, P4Info, recordings and most of p4c's JSON are in tests/programs. The
JSON of the programs that `switchml bench switch` measures ships with it, in emulator/lab/bench/switch/programs."""

from pathlib import Path

import emulator.lab.bench.switch

SOURCES = Path(__file__).parents[1] / "programs"
RECORDED = SOURCES / "recorded"
FOLDERS = SOURCES, Path(emulator.lab.bench.switch.__file__).with_name("programs")

PATHS = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.json"))}
"""Program → its BMv2 JSON."""
NAMES = sorted(PATHS)
