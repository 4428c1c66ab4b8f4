"""The audit and the metrics of a broker with clients, and the wait of clients that fail too often."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pulsar
import pytest

from pulsar_on_spark.security.limits import FREE_FAILURES
from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings
from tests.kit.waiting import wait_until

LIMIT_S = 20
SECRET = os.urandom(32)


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


def mark(of: str) -> str:
    return hashlib.sha256(of.encode()).hexdigest()[:8]


@dataclass
class AuditedBroker:
    """A broker with an audit in a file."""

    broker: RunningBroker
    file: Path

    def lines(self, operation: str, file: Path | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (file or self.file).read_text().splitlines()]
        return [each for each in found if each["operation"] == operation]

    def request(self, method: str, path: str, bearer: str | None = None, **others: Any) -> httpx.Response:
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        return httpx.request(method, self.broker.web_url + path, headers=headers, timeout=LIMIT_S, **others)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedBroker]:
    folder = tmp_path_factory.mktemp("audited")
    file = folder / "audit.log"
    settings = token_settings(folder, SECRET, "alice,bob,carol") | {"audit_log_file": file}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORWARDED_ALLOW_IPS", "*")  # of uvicorn: it must have no effect
        running = RunningBroker(folder / "root", settings)
    with running:
        yield AuditedBroker(running, file)


def test_logins_and_their_ends_are_noted(audited: AuditedBroker) -> None:
    client = pulsar.Client(audited.broker.url, authentication=pulsar.AuthenticationToken(token("alice")))
    client.create_producer("noted").send(b"content of a message")
    client.close()
    wait_until(lambda: bool(audited.lines("LOGOUT")))
    login, logout = audited.lines("LOGIN")[0], audited.lines("LOGOUT")[0]
    assert (login["role"], login["method"], login["decision"]) == ("alice", "token", "allowed")
    assert login["credential"] == logout["credential"] == mark(token("alice"))
    assert (logout["role"], logout["address"]) == ("alice", login["address"])
    assert stat.S_IMODE(audited.file.stat().st_mode) == 0o600


def test_changes_by_rest_are_noted_and_reads_are_not(audited: AuditedBroker) -> None:
    path = "/admin/v2/tenants/noted"
    body = {"allowedClusters": ["standalone"], "adminRoles": ["private-role"]}
    assert audited.request("PUT", path, token("bob"), json=body).status_code == 204
    assert audited.request("PUT", path, token("bob"), json=body).status_code == 409
    assert audited.request("GET", path, token("bob")).status_code == 200
    assert audited.request("DELETE", path, token("bob")).status_code == 204
    put, again = audited.lines("PUT")
    (deleted,) = audited.lines("DELETE")
    assert (put["role"], put["resource"], put["status"], put["decision"]) == ("bob", path, 204, "allowed")
    assert put["credential"] == mark(token("bob"))
    assert (again["status"], again["decision"], deleted["decision"]) == (409, "failed", "allowed")
    assert "private-role" not in audited.file.read_text()
    assert audited.lines("GET") == []


def test_refusals_are_noted_with_their_reason(audited: AuditedBroker) -> None:
    for _ in range(3):
        assert audited.request("POST", "/admin/v2/tenants/x", "wrong.token.x").status_code == 401
    (refused,) = audited.lines("POST")
    assert (refused["decision"], refused["status"], refused["reason"]) == ("refused", 401, "the token is not a JWT")
    assert (refused["method"], refused["credential"]) == ("token", mark("wrong.token.x"))
    assert audited.broker.said.count("The request '/admin/v2/tenants/x'") == 1
    foreign = httpx.post(
        f"{audited.broker.web_url}/admin/v2/tenants/y", headers={"Origin": "https://evil.example.com"}, timeout=LIMIT_S
    )
    assert foreign.status_code == 403
    assert "evil.example.com" in audited.lines("POST")[1]["reason"]


def test_a_refusal_for_an_unknown_tenant_is_a_refusal(audited: AuditedBroker) -> None:
    assert audited.request("GET", "/admin/v2/namespaces/absent", token("mallory")).status_code == 404
    (refused,) = audited.lines("GET")
    assert (refused["decision"], refused["role"], refused["status"]) == ("refused", "mallory", 404)
    assert refused["credential"] == mark(token("mallory"))


def test_a_rotated_file_is_opened_again_on_sighup(audited: AuditedBroker) -> None:
    old = audited.file.with_suffix(".1")
    audited.file.rename(old)
    os.kill(audited.broker.pid, signal.SIGHUP)
    wait_until(audited.file.exists)
    assert audited.request("PUT", "/admin/v2/tenants/after", token("carol")).status_code == 204
    assert [each["role"] for each in audited.lines("PUT")] == ["carol"]
    audited.file.write_text(old.read_text() + audited.file.read_text())


def test_authentications_are_counted(audited: AuditedBroker) -> None:
    text = audited.request("GET", "/metrics").text
    labels = 'auth_method="token",cluster="standalone",provider_name="AuthenticationProviderToken"'
    assert f"pulsar_authentication_success_total{{{labels}}} " in text
    assert f'pulsar_authentication_failures_total{{{labels},reason="malformed"}} 3.0' in text


def test_a_client_cannot_choose_its_address(audited: AuditedBroker) -> None:
    """By the header of a proxy: neither for the audit, nor to fail as often as it likes."""
    headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": "10.66.0.1", "X-Forwarded-Proto": "https"}
    url = f"{audited.broker.web_url}/admin/v2/tenants/forwarded"
    assert httpx.put(url, headers=headers, timeout=LIMIT_S).status_code == 401
    (noted,) = [each for each in audited.lines("PUT") if each["resource"].endswith("forwarded")]
    assert noted["address"].startswith("127.0.0.1:")


def test_a_host_that_fails_often_waits_for_its_answers(audited: AuditedBroker) -> None:
    """Runs last: the host is the one of all other tests."""
    others = itertools.count()

    async def scene() -> list[float]:
        async def one() -> float:
            begun = time.monotonic()
            headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": f"10.66.0.{next(others)}"}
            answer = await client.get(f"{audited.broker.web_url}/admin/v2/tenants", headers=headers)
            assert answer.status_code == 401
            return time.monotonic() - begun

        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            for _ in range(FREE_FAILURES):
                await one()
            return list(await asyncio.gather(*(one() for _ in range(10))))

    assert min(asyncio.run(scene())) >= 1
    assert audited.request("GET", "/admin/v2/tenants", token("alice")).elapsed.total_seconds() < 1
    (noted,) = audited.lines("SLOW_DOWN")
    assert "answers wait" in noted["reason"]
