"""The audit of requests, seen from the application and from the client."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pulsar_on_spark.broker.web.audited import Audited
from pulsar_on_spark.broker.web.requests import PRINCIPAL
from pulsar_on_spark.security.audit_log import Audit, AuditLogger
from pulsar_on_spark.security.principal import Principal


class Events(AuditLogger):
    """Lines of the audit and messages to the client, in their order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def write(self, line: str) -> None:
        found = json.loads(line)
        self.all.append(f"audit {found['decision']} {found['status']}")

    async def send(self, message: Message) -> None:
        self.all.append(message["type"])


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=204)(scope, receive, send)


async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError


async def nothing() -> Message:
    raise AssertionError("the body is not looked at")


def test_a_line_is_written_before_the_client_has_its_answer() -> None:
    events = Events()
    scope = {"type": "http", "method": "PUT", "path": "/x", PRINCIPAL: Principal("a")}
    asyncio.run(Audited(answers, Audit(events))(scope, nothing, events.send))
    assert events.all == ["audit allowed 204", "http.response.start", "http.response.body"]


@pytest.mark.parametrize(
    ("app", "wanted"),
    [(breaks, ["audit failed 500"]), (breaks_off, ["audit allowed 200", "http.response.start"])],
)
def test_a_request_that_breaks_has_one_line(app: object, wanted: list[str]) -> None:
    events = Events()
    scope = {"type": "http", "method": "PUT", "path": "/x", PRINCIPAL: Principal("a")}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Audited(app, Audit(events))(scope, nothing, events.send))  # type: ignore[arg-type]
    assert events.all == wanted
