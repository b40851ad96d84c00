"""Mininet with our switch between two hosts. Mininet wants the main thread and a fresh process, so it runs in its
own."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.root

NETWORK = '''
    import sys
    from shlex import quote
    from emulator.networks.testbed.mininet import P4Host, P4Switch
    from mininet.net import Mininet
    from mininet.topo import Topo

    RECEIVE = """
    import socket
    sock = socket.create_server(("0.0.0.0", 5000)).accept()[0]
    n = 0
    while data := sock.recv(65536):
        n += len(data)
    print("got", n)
    """
    SEND = """
    import socket, time
    while True:
        try:
            sock = socket.create_connection(("10.0.2.1", 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    sock.sendall(bytes(3_000_000))
    """

    class TwoHosts(Topo):
        def build(self):
            self.addSwitch("s1", json_path="emulator/lab/bench/switch/programs/l3.json", **OPTIONS)
            for n in (1, 2):
                self.addHost(f"h{n}", ip=f"10.0.{n}.1/24", mac=f"02:00:00:00:00:0{n}")
                self.addLink(f"h{n}", "s1", port2=n)

    net = Mininet(topo=TwoHosts(), host=P4Host, switch=P4Switch, controller=None)
    try:
        net.start()
        switch, h1, h2 = net.get("s1", "h1", "h2")
        from switchml.control.thrift.client import Client
        from types import SimpleNamespace
        with Client("127.0.0.1", switch.thrift_port) as control:
            for n, host in ((1, h1), (2, h2)):
                key = [SimpleNamespace(type=1, lpm=SimpleNamespace(key=bytes([10, 0, n, 0]), prefix_length=24))]
                data = [bytes.fromhex(host.MAC().replace(":", "")), bytes([0, n])]
                control.call("standard", "bm_mt_add_entry", table="MyIngress.routes", match=key,
                             action="MyIngress.route", data=data, options=SimpleNamespace())
        for host, other in ((h1, 2), (h2, 1)):
            host.cmd(f"ip route add default dev eth0")
            host.cmd(f"ip neigh add 10.0.{other}.1 lladdr 02:00:00:00:00:ff dev eth0")
        print(switch.describe() or "")
        print(h1.cmd("ping -c 2 -w 60 10.0.2.1"))
        h2.sendCmd(sys.executable, "-c", quote(RECEIVE))
        h1.cmd(sys.executable, "-c", quote(SEND))
        print(h2.waitOutput())
    finally:
        net.stop()
'''


def test_two_hosts(mininet, tmp_path):
    text = textwrap.dedent(NETWORK).replace("**OPTIONS", f"log_file={str(tmp_path / 's1.log')!r}, thrift_port=9790")
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=110)
    log = tmp_path / "s1.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert re.search(r" [1-9]\d* received", done.stdout), done.stdout
    assert "got 3000000" in done.stdout
    assert "Thrift port: 9790" in done.stdout
