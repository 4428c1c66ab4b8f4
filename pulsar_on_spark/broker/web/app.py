"""The web application: all routes, and errors in the form that Pulsar's clients read, `{"reason": ...}`."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_on_spark.broker.runtime.server_errors import BUG_REASON, ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.services.vitals import Vitals
from pulsar_on_spark.broker.web.admin.peeks import peek_turns
from pulsar_on_spark.broker.web.admin.storage import StorageLook
from pulsar_on_spark.broker.web.authenticated import Authenticated
from pulsar_on_spark.broker.web.guard import Guard, Guarded
from pulsar_on_spark.broker.web.routers import ROUTERS
from pulsar_on_spark.model.errors import (
    AccessDeniedError,
    ConsumerBusyError,
    ConsumerFencedError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    MetadataError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    PulsarpyError,
    SchemaNotFoundError,
    StorageError,
    SubscriptionNotFoundError,
    TopicBusyError,
    TopicExistsError,
    TopicNotFoundError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.security.evidence import NotAuthenticatedError
from pulsar_on_spark.topic.entries.schemas.schema import MAX_SCHEMA_BYTES

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 * MAX_SCHEMA_BYTES
"""Limit of a request's body: the largest is a schema in JSON with some of its characters escaped."""
MAX_DRAINED_BYTES: Final = 16 * MAX_BODY_BYTES
"""Bytes of a body above the limit that are read and dropped: a client that is still sending misses the response."""
_STATUS: Final[tuple[tuple[type[PulsarpyError], int], ...]] = (
    (NotAuthenticatedError, 401),
    (AccessDeniedError, 403),
    (TopicNotFoundError, 404),
    (NamespaceNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (SchemaNotFoundError, 404),
    (TopicExistsError, 409),
    (NamespaceExistsError, 409),
    (ConsumerBusyError, 412),
    (TopicBusyError, 412),
    (TopicTerminatedError, 412),
    (IncompatibleSchemaError, 409),
    (InvalidArgumentError, 412),
    (TopicOwnedElsewhereError, 503),
    (ConsumerFencedError, 503),
    (MetadataError, 503),
    (StorageError, 503),
)
"""HTTP status by error class; the first matching line decides, and other errors are 500."""
_STATUS_OF_CODE: Final = {
    ServerError.AuthorizationError: 403,
    ServerError.TopicNotFound: 404,
    ServerError.InvalidTopicName: 412,
    ServerError.NotAllowedError: 405,
    ServerError.ServiceNotReady: 503,
    ServerError.SubscriptionNotFound: 404,
    ServerError.ConsumerBusy: 412,
    ServerError.MetadataError: 412,
}

_DESCRIPTION: Final = (
    "Apache Pulsar's admin REST v2 over a root of pulsar_on_spark. Unsupported requests are answered with 501 and the "
    'reason; errors are `{"reason": "..."}`.'
)


def create_app(services: Services, vitals: Vitals) -> FastAPI:
    """Create the broker's web application.

    Args:
        services: The broker's parts.
        vitals: Its vital signs, for metrics and probes.
    """
    app = FastAPI(
        title="pulsar_on_spark",
        description=_DESCRIPTION,
        version=version("pulsar-on-spark"),
        docs_url=None,  # FastAPI's pages load scripts of a public network
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.vitals = vitals
    app.state.peek_turns = peek_turns()
    app.state.storage_look = StorageLook()
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(_LimitedBody)
    app.add_middleware(_HeadAsGet)
    app.add_middleware(Authenticated, services=services)
    settings = services.settings
    hosts = (*settings.web_service_allowed_hosts, *services.listeners.hosts)
    guard = Guard.of(settings.advertised_address, hosts, settings.web_service_allowed_origins)
    app.add_middleware(Guarded, guard=guard)
    app.add_exception_handler(PulsarpyError, _refused)
    app.add_exception_handler(StarletteHTTPException, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(Exception, _broken)
    return app


class _LimitedBody:
    """Middleware that refuses bodies above `MAX_BODY_BYTES` before they are in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken_bytes = 0

        async def receive_more() -> Message:
            nonlocal taken_bytes
            message = await receive()
            taken_bytes += len(message.get("body", b""))
            if taken_bytes <= MAX_BODY_BYTES:
                return message
            while message.get("more_body") and taken_bytes <= MAX_DRAINED_BYTES:
                message = await receive()
                taken_bytes += len(message.get("body", b""))
            raise HTTPException(413, f"The body is longer than {MAX_BODY_BYTES} bytes: send less.")

        await self._app(scope, receive_more, send)


class _HeadAsGet:
    """Middleware that handles HEAD as GET, as Pulsar's server does; uvicorn omits the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)


def status_of(error: PulsarpyError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ServerRefusalError):
        return _STATUS_OF_CODE.get(error.code, 500)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PulsarpyError), "registered for these"
    return _reason(status_of(error), error.as_pulsar or str(error))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException | HTTPException), "registered for these"
    if error.status_code == 404 and error.detail == "Not Found":
        return _reason(404, f"No such path: {request.url.path}; see Pulsar's admin REST v2 for paths.")
    return _reason(error.status_code, str(error.detail))


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError), "registered for these"
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        at = first["loc"][-1]
        return _reason(400, f"The request's body is not JSON ({first['ctx']['error']}: character {at}): correct it.")
    where = ".".join(str(part) for part in first["loc"])
    return _reason(400, f"The request's {where} is invalid ({first['msg']}): correct it.")


async def _broken(request: Request, error: Exception) -> JSONResponse:
    log.error("The request %s %s failed.", request.method, request.url.path, exc_info=error)
    return _reason(500, BUG_REASON)


def _reason(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"reason": reason}, status)
