"""The P4Runtime server: gRPC's side of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from emulator.bmv2 import loader
from emulator.bmv2.device import Device
from emulator.bmv2.p4runtime.packets import packet_in, packet_out
from emulator.bmv2.p4runtime.pipeline import Pipeline
from emulator.bmv2.p4runtime.protos import SERVICE, messages
from emulator.bmv2.p4runtime.streams import Arbiter, Stream
from emulator.bmv2.p4runtime.values import Code, Refused, code_of, invalid
from switchml.errors import ConfigError, ProgramError, SwitchMLError

log = logging.getLogger("switchml.bmv2")

API_VERSION = "1.4.1"
"""The version of the specification that Capabilities tells."""
VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, COMMIT, RECONCILE_AND_COMMIT = 1, 2, 3, 4, 5
"""Actions of SetForwardingPipelineConfig."""
ALL, COOKIE_ONLY, P4INFO_AND_COOKIE, DEVICE_CONFIG_AND_COOKIE = range(4)
"""What GetForwardingPipelineConfig answers."""
_THREADS = 32


class P4RuntimeServer:
    """Serves `device` on `address` ("0.0.0.0:9559"; port 0: any; `port` then says which) until `close`. `cpu_port`: where
    the program meets the controller. Raises ConfigError if the port is taken."""

    def __init__(self, device: Device, address: str = "0.0.0.0:9559", cpu_port: int | None = None) -> None:
        self.device = device
        self.cpu_port = cpu_port
        self.arbiter = Arbiter(device.device_id)
        self.pipeline: Pipeline | None = None
        self._saved: Any = None
        self._writing = threading.RLock()
        if cpu_port is not None:
            device.listen(cpu_port, self._packet_in)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="p4runtime"),
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 28)],
        )
        self._server.add_generic_rpc_handlers([self._handlers()])
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"can't listen on {address} for P4Runtime: {error}") from error
        self._server.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.stop(0.2).wait()

    def _handlers(self) -> grpc.GenericRpcHandler:
        m = messages()
        calls = {
            "Write": (grpc.unary_unary_rpc_method_handler, self.write, m.WriteRequest),
            "Read": (grpc.unary_stream_rpc_method_handler, self.read, m.ReadRequest),
            "SetForwardingPipelineConfig": (
                grpc.unary_unary_rpc_method_handler, self.set_config, m.SetForwardingPipelineConfigRequest,
            ),
            "GetForwardingPipelineConfig": (
                grpc.unary_unary_rpc_method_handler, self.get_config, m.GetForwardingPipelineConfigRequest,
            ),
            "StreamChannel": (grpc.stream_stream_rpc_method_handler, self.stream, m.StreamMessageRequest),
            "Capabilities": (grpc.unary_unary_rpc_method_handler, self.capabilities, m.CapabilitiesRequest),
        }  # fmt: skip
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: make(method, request_deserializer=kind.FromString, response_serializer=type(self)._serialize)
                for name, (make, method, kind) in calls.items()
            },
        )

    @staticmethod
    def _serialize(message: Any) -> bytes:
        return message.SerializeToString()

    def _guarded(self, context: Any, step: Callable[[], Any]) -> Any:
        """What `step` returns; its errors become gRPC's."""
        try:
            return step()
        except SwitchMLError as error:
            context.abort(code_of(error), str(error))
        except Exception as error:
            if error.args:  # abort() raises one without
                log.exception("A P4Runtime call failed")
            raise

    def _running(self) -> Pipeline:
        if self.pipeline is None:
            raise Refused(Code.FAILED_PRECONDITION, "no program was set: call SetForwardingPipelineConfig first")
        return self.pipeline

    # Calls

    def capabilities(self, request: Any, context: Any) -> Any:
        """Section 18."""
        return messages().CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def set_config(self, request: Any, context: Any) -> Any:
        """Section 7.2."""
        return self._guarded(context, lambda: self._set_config(request))

    def _set_config(self, request: Any) -> Any:
        self.arbiter.check_primary(request)
        response = messages().SetForwardingPipelineConfigResponse()
        with self._writing:
            if request.action == COMMIT:
                if self._saved is None:
                    raise Refused(Code.FAILED_PRECONDITION, "no program was saved")
                config, self._saved = self._saved, None
            else:
                config = request.config
            if request.action not in (VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT, COMMIT):
                raise Refused(Code.UNIMPLEMENTED, f"action {request.action} is not supported")
            try:
                program = loader.loads(_json_of(config.p4_device_config))
                loader.check_runnable(program)
            except ProgramError as error:
                raise invalid(str(error)) from error
            if request.action == VERIFY_AND_SAVE:
                self._saved = config
            elif request.action in (VERIFY_AND_COMMIT, COMMIT):
                self.device.load(program)
                self.pipeline = Pipeline(
                    config, self.device.state, lambda digest: self.arbiter.tell_primaries(digest=digest)
                )
        return response

    def get_config(self, request: Any, context: Any) -> Any:
        """Section 7.3."""
        return self._guarded(context, lambda: self._get_config(request))

    def _get_config(self, request: Any) -> Any:
        self.arbiter.check_device(request.device_id)
        response = messages().GetForwardingPipelineConfigResponse()
        if self.pipeline is None:
            return response
        config, told = self.pipeline.config, response.config
        if config.HasField("cookie"):
            told.cookie.CopyFrom(config.cookie)
        if request.response_type in (ALL, P4INFO_AND_COOKIE):
            told.p4info.CopyFrom(config.p4info)
        if request.response_type in (ALL, DEVICE_CONFIG_AND_COOKIE):
            told.p4_device_config = config.p4_device_config
        told.SetInParent()
        return response

    def write(self, request: Any, context: Any) -> Any:
        """Section 12. Updates are done one by one; those that fail do not stop the others."""
        return self._guarded(context, lambda: self._write(request, context))

    def _write(self, request: Any, context: Any) -> Any:
        self.arbiter.check_primary(request)
        if request.atomicity:
            raise Refused(Code.UNIMPLEMENTED, "only CONTINUE_ON_ERROR is supported")
        errors, m = [], messages()
        with self._writing:
            pipeline = self._running()
            for update in request.updates:
                try:
                    pipeline.write(update)
                    errors.append(m.Error())
                except SwitchMLError as error:
                    errors.append(m.Error(canonical_code=code_of(error).value[0], message=str(error)))
        if any(error.canonical_code for error in errors):
            status = m.Status(code=Code.UNKNOWN.value[0], message="some updates failed")
            for error in errors:
                status.details.add().Pack(error)
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            said = "; ".join(error.message for error in errors if error.message)
            context.abort(Code.UNKNOWN, f"some updates failed: {said}")
        return m.WriteResponse()

    def read(self, request: Any, context: Any) -> Iterator[Any]:
        """Section 13."""

        def run() -> Any:
            self.arbiter.check_device(request.device_id)
            with self._writing:
                pipeline = self._running()
                found = [entity for wanted in request.entities for entity in pipeline.read(wanted)]
            return messages().ReadResponse(entities=found)

        yield self._guarded(context, run)

    def stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Sections 5 and 16: a controller, until it goes."""
        stream = Stream()
        failure: list[SwitchMLError] = []

        def listen() -> None:
            try:
                for request in requests:
                    self._take(stream, request)
            except SwitchMLError as error:
                failure.append(error)
            except Exception:
                log.debug("A controller went away")
            finally:
                stream.outgoing.put(None)

        context.add_callback(lambda: stream.outgoing.put(None))
        threading.Thread(target=listen, name="controller", daemon=True).start()
        try:
            while (response := stream.outgoing.get()) is not None:
                yield response
        finally:
            self.arbiter.leave(stream)
        if failure:
            context.abort(code_of(failure[0]), str(failure[0]))

    def _take(self, stream: Stream, request: Any) -> None:
        """One message of a controller; an error about anything but arbitration is told, and ends nothing."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self.arbiter.arbitrate(stream, request.arbitration)
            return
        try:
            if self.arbiter.primary(stream.role) is not stream:
                raise Refused(Code.PERMISSION_DENIED, "only the primary controller may do this")
            if kind == "packet":
                if self.cpu_port is None:
                    raise Refused(Code.FAILED_PRECONDITION, "the switch was started without --cpu-port")
                self.device.take([(self.cpu_port, packet_out(self._running().info, request.packet))])
            elif kind == "digest_ack":
                self._running().digests.acknowledge(request.digest_ack)
            else:
                raise invalid(f"{kind} is not supported")
        except SwitchMLError as error:
            told = messages().StreamError(canonical_code=code_of(error).value[0], message=str(error))
            if kind == "packet":
                told.packet_out.packet_out.CopyFrom(request.packet)
            stream.tell(error=told)

    def _packet_in(self, frame: bytes) -> None:
        """A frame left by the CPU port."""
        if self.pipeline is not None:
            self.arbiter.tell_primaries(packet=packet_in(self.pipeline.info, frame))


def _json_of(config: bytes) -> str:
    """The program in a device config: the JSON itself, or within the P4DeviceConfig message of old clients."""
    start = config.find(b"{")
    if start < 0:
        raise invalid("the device config is not BMv2 JSON")
    try:
        return config[start:].decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the device config is not BMv2 JSON: {error}") from error
