"""A P4 switch as a process of its own, and the control plane of its jobs in the test's: `Served("p4")`, or
`Served("bmv2")` for simple_switch (root)."""

import os
import signal
from contextlib import AbstractContextManager

from host_agent.loop import warm_up
from switchml.control import client
from switchml.control.p4.dataplane import BMV2_WINDOW_BYTES, P4Dataplane, udp_window_bytes
from switchml.control.p4.driver import Unreachable
from switchml.control.p4.processes import OurSwitch, SimpleSwitch
from switchml.control.p4.thrift import ThriftSwitch
from switchml.control.server import Controller
from tests.support.launch import DEADLINE_S, until

TABLES = ("own_addresses", "workers", "workers_v1", "receivers", "loss_in", "loss_out")


class Served(AbstractContextManager):
    """`address` is the control port's HOST:PORT. `looker` is a second, read-only connection to the switch."""

    def __init__(self, kind: str = "p4", *, ports: int = 4, program: str = "switchml", **options):
        warm_up()  # not while ranks wait for each other
        self.process = OurSwitch(program) if kind == "p4" else SimpleSwitch(ports, program)
        self.dataplane = self.controller = None
        try:
            is_ours = kind == "p4"
            self.dataplane = P4Dataplane(
                self.process.connect(),
                links=self.process.links,
                udp_bind="127.0.0.1" if is_ours else "",
                window_bytes=udp_window_bytes() if is_ours else BMV2_WINDOW_BYTES,
                **options,
            ).start()
            self.controller = Controller(self.dataplane, control_port=0)
            self.address = "{}:{}".format(*self.controller.start().control)
        except BaseException:
            self.stop()
            raise
        self.empty = self.inside()

    def inside(self) -> dict[str, object]:
        """The switch's contents: entries of each table, multicast groups and their nodes, ports."""
        looker = ThriftSwitch(*self.process.thrift)
        try:
            counts = {table: looker._call("standard", "bm_mt_get_num_entries", cxt=0, table=table) for table in TABLES}
            groups = looker._call("simple_pre_lag", "bm_mc_get_entries", cxt=0)
            return {**counts, "groups": groups.count('"id"'), "nodes": groups.count('"rid"'), "ports": looker.ports()}
        finally:
            looker.close()

    def answers(self) -> bool:
        """Whether the switch does."""
        try:
            ThriftSwitch(*self.process.thrift).close()
        except Unreachable:
            return False
        return True

    def job(self, name: str):
        """The status of the latest job of this name, or None."""
        return next((job for job in client.status(self.address, timeout_s=DEADLINE_S).jobs if job.name == name), None)

    def kill(self) -> None:
        """kill -9 the switch; returns when another one runs in its place."""
        before = self.process.pid
        os.kill(before, signal.SIGKILL)
        until(lambda: self.process.pid != before)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.controller is not None:
            self.controller.stop()
        if self.dataplane is not None:
            self.dataplane.stop()
        self.process.stop()
