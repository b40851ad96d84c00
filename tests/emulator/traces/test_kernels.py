"""What kernels and operators are, told from names of real traces, one by one."""

import csv
from pathlib import Path

import pytest

from emulator.traces.kernels import ON_MATRIX_UNITS, KernelClass, kernel_class

NAMES = list(csv.DictReader((Path(__file__).parent / "kernel_names.csv").open()))


@pytest.mark.parametrize("row", NAMES, ids=[f"{row['name'][:40]}-{number}" for number, row in enumerate(NAMES)])
def test_the_class_of_a_real_name(row):
    assert kernel_class(row["name"]).value == row["class"], row["source"]


def test_products_of_matrices_run_on_matrix_units():
    """Names about which two classifiers used to disagree."""
    names = ["aten::mm", "aten::addmm", "flash_fwd", "fmha", "wgrad", "aten::bmm", "aten::conv2d", "aten::linear"]
    others = ["aten::add_", "aten::cudnn_batch_norm", "Memcpy DtoD (Device -> Device)"]
    assert ON_MATRIX_UNITS.issuperset(map(kernel_class, names))
    assert ON_MATRIX_UNITS.isdisjoint(map(kernel_class, others))
    assert KernelClass.COMMUNICATION not in ON_MATRIX_UNITS
