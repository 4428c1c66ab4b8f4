"""The audit of HTTP requests: all changes, and all refusals of authenticated clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_on_spark.broker.web.requests import PRINCIPAL
from pulsar_on_spark.security.audit_log import Audit

OUTCOME: Final = "pulsarpy.outcome"
"""The key of a request's scope for its `Outcome`."""
_READS: Final = ("GET", "HEAD", "OPTIONS")
_REFUSED: Final = (401, 403)


@dataclass(slots=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        status: The HTTP status of the response; 500 before there is a response.
        reason: The reason of a refusal; "" without one.
        is_refused: True if the rules of authorization refused the request, whatever the status.
    """

    status: int = 500
    reason: str = ""
    is_refused: bool = False


def client_of(scope: Scope) -> str:
    """Return the address of a request's client, `host:port`."""
    host, port = scope.get("client") or ("?", 0)
    return f"{host}:{port}"


class Audited:
    """Middleware that writes the changes and refusals of authenticated clients to the audit.

    Args:
        app: The application.
        audit: The audit.
    """

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write its outcome to the audit before the client gets the response."""
        outcome = Outcome()
        is_noted = False

        async def send_noted(message: Message) -> None:
            nonlocal is_noted
            if message["type"] == "http.response.start":
                outcome.status, is_noted = message["status"], True
                self._note(scope, outcome)
            await send(message)

        try:
            await self._app({**scope, OUTCOME: outcome}, receive, send_noted)
        finally:
            if not is_noted:
                self._note(scope, outcome)

    def _note(self, scope: Scope, outcome: Outcome) -> None:
        address, client, operation, path = client_of(scope), scope[PRINCIPAL], scope["method"], scope["path"]
        if outcome.is_refused or outcome.status in _REFUSED:
            self._audit.note_refusal(
                address, client, operation, path, reason=outcome.reason or "refused", status=outcome.status
            )
        elif operation not in _READS:
            self._audit.note_change(address, client, operation, path, outcome.status)
