"""gRPC services from the descriptors in messages' modules: a client's calls, and a server's handlers. Replaces the code
that protoc's plugin would generate for each service."""

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

MALFORMED = object()
"""Placeholder for a request that can't be parsed. gRPC would print a traceback for an exception of a deserializer."""
WHAT = "the request is no message of the kind that this call takes"


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
    service: ServiceDescriptor,
    servicer: object,
    wrap: Callable[[Any, Any], Any] = lambda method, call: call,
    malformed: Callable[[str], None] = lambda peer: None,
) -> grpc.GenericRpcHandler:
    """Handler with which a server, including asyncio's, answers the service's calls by the methods of `servicer` of the
    same name. `wrap(method descriptor, call)` returns the function to call in place of each. A request that can't be
    parsed is answered with INVALID_ARGUMENT after `malformed(gRPC's name of the peer)`; in a stream of requests it is
    replaced by MALFORMED."""
    handlers = {
        method.name: getattr(grpc, f"{_kind(method)}_rpc_method_handler")(
            _refusing(method, wrap(method, getattr(servicer, method.name)), malformed),
            request_deserializer=_reader(message_factory.GetMessageClass(method.input_type)),
            response_serializer=_serialize,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _reader(kind: type[Message]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return MALFORMED

    return read


def _refusing(method: Any, call: Callable[..., Any], malformed: Callable[[str], None]) -> Callable[..., Any]:
    """`call`, except that requests that can't be parsed are refused."""
    if method.client_streaming:
        return call

    def refuse(context: Any) -> Any:
        malformed(context.peer())
        return context.abort(grpc.StatusCode.INVALID_ARGUMENT, WHAT)

    async def answer_later(request: Any, context: Any) -> Any:
        return await (refuse(context) if request is MALFORMED else call(request, context))

    def stream(request: Any, context: Any) -> Iterator[Any]:
        yield from refuse(context) if request is MALFORMED else call(request, context)

    def answer(request: Any, context: Any) -> Any:
        return refuse(context) if request is MALFORMED else call(request, context)

    if inspect.iscoroutinefunction(call):
        return answer_later
    return stream if method.server_streaming else answer


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _kind(method: Any) -> str:
    """`unary_stream` for a call with one request and a stream of responses, and so on."""
    kinds = ("unary", "stream")
    return f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
