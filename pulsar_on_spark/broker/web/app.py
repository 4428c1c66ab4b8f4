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

from pulsar_on_spark.broker.observe.load_report import LoadReporter
from pulsar_on_spark.broker.runtime.server_errors import BUG_REASON
from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.admin.peeks import PeekTurns
from pulsar_on_spark.broker.web.admin.storage import StorageScan
from pulsar_on_spark.broker.web.audited import OUTCOME, Audited
from pulsar_on_spark.broker.web.authenticated import Authenticated
from pulsar_on_spark.broker.web.authorized import Authorized
from pulsar_on_spark.broker.web.by_owner import ByOwner
from pulsar_on_spark.broker.web.error_responses import reason_response, refusal
from pulsar_on_spark.broker.web.guard import Guard, Guarded
from pulsar_on_spark.broker.web.metrics_page import MetricsPages
from pulsar_on_spark.broker.web.routers import ROUTERS
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.topic.entries.schemas.schema import MAX_SCHEMA_BYTES

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 * MAX_SCHEMA_BYTES
"""Limit of a request's body: the largest body is a schema in JSON with some of its characters escaped."""
MAX_DRAINED_BYTES: Final = 16 * MAX_BODY_BYTES
"""Limit of the bytes of a long body that are read and dropped before it is refused: a client that is still sending
would miss the response."""
_DESCRIPTION: Final = (
    "Apache Pulsar's admin REST v2 over a root of pulsar_on_spark. Unsupported requests are answered with 501 and the "
    'reason; errors are `{"reason": "..."}`.'
)


def create_app(services: Services, broker_health: BrokerHealth) -> FastAPI:
    """Create the broker's web application.

    Args:
        services: The broker's parts.
        broker_health: The broker's health, for metrics and probes.
    """
    app = FastAPI(
        title="pulsar_on_spark",
        description=_DESCRIPTION,
        version=version("pulsar-on-spark"),
        docs_url=None,  # FastAPI's pages load scripts from a public network
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.broker_health = broker_health
    app.state.peek_turns = PeekTurns()
    app.state.storage_scan = StorageScan()
    app.state.load_reporter = LoadReporter()
    app.state.metrics_pages = MetricsPages()
    for router in ROUTERS:
        app.include_router(router)
    routes = [*app.routes, *(route for router in ROUTERS for route in router.routes)]
    app.add_middleware(ByOwner, routes=routes, services=services)
    app.add_middleware(_LimitedBody)
    if services.settings.authorization_enabled:
        app.add_middleware(Authorized, routes=routes, access=services.access, views=services.views)
    app.add_middleware(_HeadAsGet)
    app.add_middleware(Audited, audit=services.audit)
    app.add_middleware(Authenticated, services=services)
    settings = services.settings
    hosts = (*settings.web_service_allowed_hosts, *services.listeners.hosts)
    guard = Guard.of(settings.advertised_address, hosts, settings.web_service_allowed_origins)
    app.add_middleware(Guarded, guard=guard, audit=services.audit)
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


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PulsarpyError), "registered for these"
    request.scope[OUTCOME].reason = str(error)
    return refusal(error)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException | HTTPException), "registered for these"
    if error.status_code == 404 and error.detail == "Not Found":
        return reason_response(404, f"No such path: {request.url.path}; see Pulsar's admin REST v2 for paths.")
    return reason_response(error.status_code, str(error.detail), error.headers)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError), "registered for these"
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        at = first["loc"][-1]
        return reason_response(
            400, f"The request's body is not JSON ({first['ctx']['error']}: character {at}): correct it."
        )
    where = ".".join(str(part) for part in first["loc"])
    return reason_response(400, f"The request's {where} is invalid ({first['msg']}): correct it.")


async def _broken(request: Request, error: Exception) -> JSONResponse:
    log.error("The request %s %s failed: a bug in the broker.", request.method, request.url.path, exc_info=error)
    return reason_response(500, BUG_REASON)
