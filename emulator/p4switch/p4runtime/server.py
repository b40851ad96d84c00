"""The gRPC server: P4Runtime's six calls.

No client can stop the switch: a call that fails ends with a code and a message."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from emulator.p4switch.device import Device
from emulator.p4switch.p4runtime.configs import Configs
from emulator.p4switch.p4runtime.controllers import MAX_STREAMS, Controllers, Stream
from emulator.p4switch.p4runtime.errors import batch_status, rpc_error, status_code
from emulator.p4switch.p4runtime.fields import PACKET_IN, PACKET_OUT, ControllerHeader
from switchml import logs
from switchml.control import p4runtime_protos as protos
from switchml.control import rpc
from switchml.control.p4runtime_protos import v1
from switchml.errors import ConfigError, ControlError, SwitchMLError

log = logs.of("switchml.bmv2")

MAX_MESSAGE_BYTES = 256 << 20
"""Maximum request size; programs can be large."""
ANSWER_BYTES = 1 << 20
"""Approximate size of a read's messages; gRPC clients reject messages above 4 MiB."""
TICK_S = 0.05
"""Interval of checks for idle entries, expired digest acknowledgements and the state of ports."""


def credentials(key: str, certificate: str, authority: str | None, require_clients: bool) -> grpc.ServerCredentials:
    """TLS credentials from the paths of PEM files. `require_clients`: only clients with a certificate of `authority`
    may connect. Raises ConfigError."""

    def pem(option: str, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"--grpc-server-{option}: can't read {path}: {error.strerror}") from error

    pair = pem("key", key), pem("cert", certificate)
    return grpc.ssl_server_credentials([pair], pem("cacert", authority) if authority else None, require_clients)


class P4RuntimeServer:
    """A P4Runtime server for `device` on `address` until `close`: HOST:PORT (port 0: any free port, reported by
    `port`), or unix:PATH, a socket that only the current user can connect to. Frames for the port `cpu_port`, if given,
    are sent to the primary controllers; with `credentials`, controllers use TLS. Raises ConfigError if the address is
    not available."""

    def __init__(
        self,
        device: Device,
        address: str,
        cpu_port: int | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.device = device
        self.cpu_port = cpu_port
        self.controllers = Controllers(device.device_id)
        self.configs = Configs(device, self.controllers.to_primaries)
        self._order = threading.RLock()  # serializes writes, configs and arbitration
        self._closed = threading.Event()
        # A stream occupies a thread for its lifetime; the other threads serve the other calls.
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS + 16, "p4runtime"),
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
        )
        self._server.add_generic_rpc_handlers((rpc.handler(protos.SERVICE, self, _guarded, _malformed),))
        before = os.umask(0o177)  # permissions of a Unix socket
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        finally:
            os.umask(before)
        if not self.port:
            raise ConfigError(f"can't listen on {address} for P4Runtime; is another switch running?")
        if cpu_port is not None:
            device.listen(cpu_port, self._packet_in)
        self._server.start()
        threading.Thread(target=self._run_timer, name="p4runtime-timer", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end all streams."""
        self._closed.set()
        self.controllers.close()
        self._server.stop(0.2).wait()

    # Calls

    def _check_device(self, device_id: int) -> None:
        if device_id != self.device.device_id:
            raise rpc_error("NOT_FOUND", f"there is no device {device_id}, this is {self.device.device_id}")

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Version of the API."""
        if request.device_id:
            self._check_device(request.device_id)
        return v1.CapabilitiesResponse(p4runtime_api_version=protos.VERSION)

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Check, save or activate a program."""
        self._check_device(request.device_id)
        with self._order:
            self.controllers.check_primary(request)
            self.configs.set(request.action, request.config if request.HasField("config") else None)
        return v1.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check_device(request.device_id)
        with self._order:
            return self.configs.get(request.response_type)

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check_device(request.device_id)
        with self._order:
            self.controllers.check_primary(request)
            entities = self.configs.entities()
            if request.atomicity == v1.WriteRequest.CONTINUE_ON_ERROR:
                errors = entities.write(request.updates)
            elif request.atomicity in (v1.WriteRequest.ROLLBACK_ON_ERROR, v1.WriteRequest.DATAPLANE_ATOMIC):
                errors = entities.write_all_or_none(request.updates)
            else:
                raise rpc_error("INVALID_ARGUMENT", f"there is no atomicity {request.atomicity}")
        if any(error is not None for error in errors):
            context.abort_with_status(batch_status(errors))
        return v1.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Read entities, in messages of limited size."""
        self._check_device(request.device_id)
        with self._order:
            entities = self.configs.entities().read(request.entities)
        response, size = v1.ReadResponse(), 0
        for entity in entities:
            response.entities.append(entity)
            size += entity.ByteSize()
            if size >= ANSWER_BYTES:
                yield response
                response, size = v1.ReadResponse(), 0
        if response.entities or not entities:
            yield response

    def StreamChannel(self, requests: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """A controller's stream, for as long as it is connected."""
        stream = Stream()
        self.controllers.add(stream)
        try:
            if context.add_callback(stream.close):
                threading.Thread(target=self._listen, args=(stream, requests), daemon=True).start()
                while (message := stream.messages.get()) is not None:
                    yield message
        finally:
            with self._order:
                self.controllers.remove(stream)
        if stream.error is not None:
            raise stream.error

    def _listen(self, stream: Stream, requests: Iterable[Any]) -> None:
        """Handle a controller's messages until its stream ends."""
        error = None
        try:
            for request in requests:
                if request is rpc.MALFORMED:
                    raise rpc_error("INVALID_ARGUMENT", rpc.WHAT)
                if request.WhichOneof("update") == "arbitration":
                    with self._order:
                        self.controllers.arbitrate(stream, request.arbitration)
                else:
                    self._take(stream, request)
        except ControlError as refused:
            error = refused
        except Exception as failure:  # the stream broke
            if not isinstance(failure, grpc.RpcError) and str(failure):
                log.debug("P4Runtime: a stream ended: %s", failure)
        stream.close(error)

    def _take(self, stream: Stream, request: v1.StreamMessageRequest) -> None:
        """Handle a message other than arbitration; errors are sent on the stream (section "Stream Error Reporting")."""
        try:
            if not self.controllers.is_primary(stream):
                raise rpc_error("PERMISSION_DENIED", "only the primary controller may send this")
            kind = request.WhichOneof("update")
            if kind == "packet":
                self._packet_out(request.packet)
            elif kind == "digest_ack":
                self.configs.entities().digests.acknowledge(request.digest_ack)
            else:
                raise rpc_error("UNIMPLEMENTED", f"the switch does not support {kind}")
        except SwitchMLError as error:
            stream.send(v1.StreamMessageResponse(error=_stream_error(error, request)))

    # Packets

    def _packet_out(self, packet: v1.PacketOut) -> None:
        if self.cpu_port is None:
            raise rpc_error("FAILED_PRECONDITION", "the switch has no CPU port; start it with --cpu-port")
        p4info = self.configs.entities().pipeline.p4info
        self.device.take([(self.cpu_port, ControllerHeader.of(p4info, PACKET_OUT).join(packet))])

    def _packet_in(self, frame: bytes) -> None:
        """Send a packet-in. Called during packet processing."""
        running = self.configs.running
        if running is None:
            return
        try:
            packet = ControllerHeader.of(running.pipeline.p4info, PACKET_IN).split(frame)
        except ControlError as error:
            log.error("Dropping a packet for the controller: %s", error)
        else:
            self.controllers.to_primaries(v1.StreamMessageResponse(packet=packet))

    # Timer

    def _run_timer(self) -> None:
        while not self._closed.wait(TICK_S):
            running = self.configs.running
            if running is None:
                continue
            try:
                running.digests.expire()
                running.follow_ports()
                with running.pipeline.state.lock:
                    idle = running.tables.newly_idle()
                if idle:
                    message = v1.IdleTimeoutNotification(table_entry=idle, timestamp=time.time_ns())
                    self.controllers.to_primaries(v1.StreamMessageResponse(idle_timeout_notification=message))
            except Exception:
                log.exception("P4Runtime: the timer failed")


def _stream_error(error: SwitchMLError, request: v1.StreamMessageRequest) -> v1.StreamError:
    details = {
        "packet": {"packet_out": {"packet_out": request.packet}},
        "digest_ack": {"digest_list_ack": {"digest_list_ack": request.digest_ack}},
    }.get(request.WhichOneof("update"), {"other": {}})
    return v1.StreamError(canonical_code=status_code(error).value[0], message=str(error), **details)


# gRPC


def _malformed(peer: str) -> None:
    client = peer.rpartition(":")[0]
    log.error("P4Runtime: %s sent a message that can't be read", client, extra=logs.about(client))


def _guarded(method: MethodDescriptor, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call so that its errors become gRPC errors."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        with _aborting(context):
            return call(request, context)

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _aborting(context):
            yield from call(request, context)

    return stream if method.server_streaming else answer


@contextmanager
def _aborting(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if context.code() is not None:  # type: ignore[attr-defined]  # types-grpcio lacks it
            raise  # it was already aborted with its own status
        if isinstance(error, SwitchMLError):
            log.debug("P4Runtime: %s", error)
            context.abort(status_code(error), str(error))
        log.exception("P4Runtime: a call failed")
        context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
