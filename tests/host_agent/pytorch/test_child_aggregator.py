"""An aggregator as a child process ends with its parent."""

import subprocess
import sys

import psutil

from tests.support.launch import until
from tests.support.ranks import environment


def test_one_that_does_not_linger_is_killed_with_its_parent():
    program = """
import os, signal, time
import psutil
from host_agent.pytorch.aggregator import ChildAggregator
child = ChildAggregator(lingers=False)
while "-ISc" in psutil.Process(child.pid).cmdline():  # it has not become the aggregator yet
    time.sleep(0.01)
os.kill(child.pid, signal.SIGSTOP)  # it does nothing by itself any more
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment())
    child = int(parent.stdout)
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
