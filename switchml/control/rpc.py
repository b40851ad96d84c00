"""gRPC services from the descriptors in messages' modules: a client's calls, and what a server registers. It stands in
for code that protoc's plugin would generate for each service."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message


def client(channel: grpc.Channel, service: ServiceDescriptor) -> SimpleNamespace:
    """The service's calls over `channel`, by name, as grpc's multicallables."""
    return SimpleNamespace(
        **{
            method.name: getattr(channel, _kind(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=_serialize,
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )
            for method in service.methods
        }
    )


def handler(
    service: ServiceDescriptor, servicer: object, wrap: Callable[[Any, Any], Any] = lambda method, call: call
) -> grpc.GenericRpcHandler:
    """What makes a server, asyncio's too, answer the service's calls by the methods of `servicer` with their names.
    `wrap(method descriptor, call)` gives the function to call in place of each."""
    handlers = {
        method.name: getattr(grpc, f"{_kind(method)}_rpc_method_handler")(
            wrap(method, getattr(servicer, method.name)),
            request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            response_serializer=_serialize,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _kind(method: Any) -> str:
    """`unary_stream` for a call with one request and a stream of responses, and so on."""
    kinds = ("unary", "stream")
    return f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
