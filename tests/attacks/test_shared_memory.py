"""Who can reach the memory that ranks share with an aggregator or with each other, and what he can do to it."""

import os
import subprocess

import pytest

from host_agent.hierarchy import memory
from switchml.net import shm

NOBODY = 65534
OPEN_ALL = """
opened=0
for path; do
    true < "$path" && opened=$((opened + 1))
    true <> "$path" && opened=$((opened + 1))
done 2> /dev/null
echo $opened
"""


@pytest.fixture(params=["ring", "host"])
def segment(request):
    """The descriptor of a job's memory, or of that which a host's ranks share."""
    fd = shm.create(2, 64)[1] if request.param == "ring" else memory.create(2)
    yield fd
    os.close(fd)


def test_only_its_user_may_open_it(segment):
    status = os.fstat(segment)
    assert status.st_mode & 0o777 == 0o600 and status.st_uid == os.getuid()
    assert status.st_nlink == 0  # no name in any file system


@pytest.mark.root
def test_another_user_finds_nothing_to_open(segment, attempts):
    """He goes through all that this process has open, whatever number it has."""
    paths = [f"/proc/{os.getpid()}/fd/{number}" for number in range(300)]
    assert opened(paths, NOBODY) == 0
    assert opened([f"/proc/{os.getpid()}/fd/{segment}"], os.getuid()) == 2
    attempts.record("another user's attempts to open shared memory", 2 * len(paths))


def opened(paths: list[str], user: int) -> int:
    """How many of the paths a user could open for reading, and for writing as well."""
    command = ["/bin/sh", "-c", OPEN_ALL, "sh", *paths]
    return int(subprocess.run(command, capture_output=True, text=True, user=user, check=True).stdout)


def test_nobody_can_cut_it_off(segment):
    """Whoever touches memory that was cut off is killed: the aggregator, with all its jobs."""
    size = os.fstat(segment).st_size
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(segment, wrong)
    assert os.fstat(segment).st_size == size
