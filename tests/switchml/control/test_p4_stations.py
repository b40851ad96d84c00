"""Where a P4 switch's data plane finds hosts."""

import pytest

from switchml.control.dataplane import JobSpec
from switchml.control.p4 import dataplane as p4_dataplane
from switchml.control.p4.dataplane import STATIONS, P4Dataplane, crc16
from switchml.errors import ConfigError
from tests.switchml.control.test_p4_tree import InProcess

HOST, TWIN = 0x02_00_00_00_00_01, 0x02_00_00_00_00_C1
"""Their last bytes differ by 0xC0, so they have one cell."""


class WithRegisters(InProcess):
    payloads, collectives, ends_early = (256, 1024), True, True

    def read_register(self, name, start, end):
        return [self.state.register(name)[index] for index in range(start, end)]

    def learn(self, mac, port):
        """What the program does with a frame."""
        self.state.register("stations")[crc16(mac.to_bytes(6, "big")) % STATIONS] = (port + 1) << 48 | mac


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(p4_dataplane, "_LOCATE_PAUSE_S", 0)
    return WithRegisters([1, 2, 3])


def v1_job(job_id, *hosts):
    """A session of hosts (address, MAC)."""
    addresses, macs = zip(*hosts, strict=True)
    return JobSpec(job_id, 1, len(hosts), 8192, 256, tuple((ip, 0) for ip in addresses), macs=macs)


def copies(driver):
    (group,) = (mgid for mgid in driver.state.replication.groups if mgid != 1)  # 1: all ports
    return driver.state.replication.copies(group)


def test_a_host_is_found_where_it_was_seen(driver):
    plane = P4Dataplane(driver, udp_bind="")
    driver.learn(HOST, 2)
    plane.start_job(v1_job(1, ("10.0.0.1", HOST)))
    assert [port for port, _ in copies(driver)] == [2]


def test_hosts_of_one_cell_get_copies_at_all_ports(driver, caplog):
    plane = P4Dataplane(driver, udp_bind="")
    driver.learn(HOST, 1)
    driver.learn(TWIN, 2)  # takes the cell
    plane.start_job(v1_job(1, ("10.0.0.1", HOST), ("10.0.0.2", TWIN)))
    by_rank = {}
    for port, rid in copies(driver):
        by_rank.setdefault(rid, []).append(port)
    assert sorted(by_rank.values()) == [[1, 2, 3], [2]]
    assert "--station 02:00:00:00:00:01=PORT" in caplog.text


def test_a_host_that_was_never_seen_is_refused(driver):
    with pytest.raises(ConfigError, match="has seen nothing from rank 0"):
        P4Dataplane(driver, udp_bind="").start_job(v1_job(1, ("10.0.0.1", HOST)))
