"""P4Runtime over TLS: simple_switch_grpc's options --grpc-server-ssl and so on."""

import grpc
import pytest
from click.testing import CliRunner

from emulator.p4switch.device import Device
from emulator.p4switch.p4runtime.server import P4RuntimeServer, credentials
from emulator.p4switch.ports.files import FilePorts
from emulator.p4switch.process import NO_PROGRAM
from emulator.p4switch.program.loader.loader import load
from emulator.p4switch.switch import Switch
from switchml.cli.main import cli
from switchml.errors import ConfigError
from tests.support.certificates import certificate
from tests.support.p4runtime_controller import v1


def version(port: int, tls: grpc.ChannelCredentials | None) -> str:
    """What the server says over a channel. Raises RpcError."""
    address = f"127.0.0.1:{port}"
    with grpc.insecure_channel(address) if tls is None else grpc.secure_channel(address, tls) as channel:
        call = channel.unary_unary(
            "/p4.v1.P4Runtime/Capabilities", v1.CapabilitiesRequest.SerializeToString,
            v1.CapabilitiesResponse.FromString,
        )  # fmt: skip
        return call(v1.CapabilitiesRequest(), timeout=100).p4runtime_api_version


@pytest.mark.parametrize("asks", [False, True], ids=["server", "both"])
def test_who_may_connect(tmp_path, asks):
    authority, _, signer = certificate(tmp_path, "authority")
    own = certificate(tmp_path, "switch", signer)
    client = certificate(tmp_path, "client", signer)
    stranger = certificate(tmp_path, "stranger")
    device = Device(Switch(load(NO_PROGRAM)), FilePorts(0))
    tls = credentials(str(own[1]), str(own[0]), str(authority), asks)
    server = P4RuntimeServer(device, "127.0.0.1:0", credentials=tls)
    root = authority.read_bytes()

    def channel(who=None, trusted=root):
        pair = (who[1].read_bytes(), who[0].read_bytes()) if who else (None, None)
        return grpc.ssl_channel_credentials(trusted, *pair)

    try:
        assert version(server.port, channel(client))
        if not asks:
            assert version(server.port, channel())
        for wrong in (
            None, channel(client, stranger[0].read_bytes()), *([channel(), channel(stranger)] if asks else ()),
        ):  # fmt: skip
            with pytest.raises(grpc.RpcError):
                version(server.port, wrong)
    finally:
        server.close()
        device.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grpc-server-cert", "x"], "needs --grpc-server-ssl"),
        (["--grpc-server-with-client-auth"], "needs --grpc-server-ssl"),
        (["--grpc-server-ssl", "--grpc-server-cert", "x", "--grpc-server-key", "y"], "needs --grpc-server-addr"),
        (["--grpc-server-ssl", "--grpc-server-addr", "127.0.0.1:0", "--grpc-server-key", "y"], "--grpc-server-cert"),
        (
            ["--grpc-server-ssl", "--grpc-server-addr", "127.0.0.1:0", "--grpc-server-cert", "x", "--grpc-server-key",
             "y", "--grpc-server-with-client-auth"],
            "--grpc-server-cacert",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(options, message):
    done = CliRunner().invoke(cli, ["switch", "--no-p4", "--thrift-port", "0", *options])
    assert done.exit_code != 0
    assert message in str(done.exception or done.output) + done.output


def test_a_key_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="--grpc-server-key: can't read"):
        credentials(str(tmp_path / "none"), str(tmp_path / "none"), None, False)
