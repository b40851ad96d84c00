"""Signals whose exceptions are lost end a program all the same; what handles them is left in peace."""

import subprocess
import sys
import textwrap

import pytest

LOSE = """
import os, signal, sys, time, weakref
from switchml.cli.interrupts import in_order
from switchml.cli.serving import until_stopped
from switchml.runtime.raising import acknowledge

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

class Thing:
    pass

def go_on():
    "The exception is gone, and is not raised again before that is said."
    print("lost", flush=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

def lose(number, meanwhile=lambda: None):
    "Receive a signal in a callback whose exceptions Python can only print."
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    del thing
    meanwhile()
    go_on()

def convert(number):
    "Receive a signal where Python raises something else instead, or nothing."
    class Descriptor:
        def __set_name__(self, *_):
            os.kill(os.getpid(), number)
    class Key:
        def __hash__(self):
            os.kill(os.getpid(), number)
    import ctypes
    api = ctypes.pythonapi.PyDict_GetItem
    api.argtypes, api.restype = [ctypes.py_object] * 2, ctypes.c_void_p
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    assert api({}, Key()) is None
    go_on()
    type("", (), {"name": Descriptor()})
"""


def outcome(program: str) -> tuple[int, str, str]:
    program = LOSE + textwrap.dedent(program)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_commands_end(number, code):
    for way in "lose", "convert":
        status, said, errors = outcome(f"""
            with in_order():
                {way}(signal.{number})
                time.sleep(30)
                print("deaf")
        """)
        if number == "SIGINT" and way == "lose":  # click would turn it into an exit code
            assert status == -2 and errors.endswith("\nKeyboardInterrupt\n")
        else:
            assert (status, errors) == (code, "")
        assert said == "lost\n"


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_servers_end(number):
    for way in "lose", "convert":
        assert outcome(f"""
            with in_order():
                with until_stopped(False):
                    {way}(signal.{number})
                    time.sleep(30)
                    print("deaf")
                time.sleep(1.2)
                print("after")
        """) == (0, "lost\nafter\n", "")  # fmt: skip


def test_other_complaints_are_printed():
    status, said, errors = outcome("""
        class Broken:
            def __del__(self):
                raise ValueError("broken")

        with until_stopped(False):
            lose(signal.SIGTERM, Broken)
            time.sleep(30)
    """)
    assert (status, said) == (0, "lost\n") and "ValueError: broken" in errors and "Stopped" not in errors


def test_what_handles_an_exception_takes_its_time():
    assert outcome("""
        class Slow:
            def __enter__(self): pass
            def __exit__(self, *_):
                time.sleep(1.2)
                print("exit")

        def slow():
            try:
                yield
            finally:
                time.sleep(1.2)
                print("finally")

        import contextlib
        with in_order():
            try:
                with contextlib.ExitStack() as stack, contextlib.contextmanager(slow)(), Slow():
                    stack.callback(lambda: time.sleep(1.2))
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                    except KeyboardInterrupt:
                        time.sleep(1.2)
                        raise ValueError
            except ValueError:
                acknowledge()
            time.sleep(1.2)
            print("done")
    """) == (0, "exit\nfinally\ndone\n", "")  # fmt: skip
