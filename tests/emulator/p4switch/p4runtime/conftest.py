"""A running switch with a P4Runtime server, and a primary controller for it."""

import functools
import importlib.util

import pytest

from tests.support.started import started


def pytest_ignore_collect(collection_path):
    """Without the package p4runtime nothing here can be imported; one test says so."""
    is_there = importlib.util.find_spec("p4") is not None
    return True if not is_there and collection_path.name != "test_protos.py" else None


@pytest.fixture
def target():
    from tests.support.p4runtime_controller import Target

    target = Target()
    yield target
    target.close()


@pytest.fixture
def new_controller(target):
    """The function that makes controllers, closed at the end."""
    from tests.support.p4runtime_controller import Controller

    yield from started(functools.partial(Controller, target), Controller.close)


@pytest.fixture
def primary(new_controller):
    """A primary controller; the function sets a program and gives the controller."""
    controller = new_controller()
    controller.arbitrate()

    def with_program(name):
        controller.push(name)
        return controller

    return with_program
