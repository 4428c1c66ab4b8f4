"""Refused requests: by the host, the origin and the spelling of the path that they name."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from pulsar_on_spark.broker.web.guard import Guard

GUARD = Guard.of("Broker-1.example.com", ["alias.example.com"], ["https://Console.example.com"])
ADMIN = "/admin/v2/clusters"


def status(headers: dict[str, str], path: str = ADMIN, guard: Guard = GUARD, method: str = "GET") -> int | None:
    refusal = guard.refusal(method, path, Headers(headers))
    return None if refusal is None else refusal[0]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1:8080",
        "10.1.2.3",
        "[::1]:8080",
        "[fe80::1]",
        "broker-1.example.com:8080",
        "alias.example.com",
    ],
)
def test_its_own_names_and_addresses_are_served(host: str) -> None:
    assert status({"host": host}) is None


def test_a_client_without_host_is_not_a_browser() -> None:
    assert status({}) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", "a b", "[x"],
)
def test_other_hosts_are_refused(host: str) -> None:
    assert status({"host": host}) == 403


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost:8080"}, None),
        ({"origin": "https://console.example.com", "sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "none"}, None),
    ],
)
def test_web_pages_of_others_are_refused(headers: dict[str, str], expected: int | None) -> None:
    assert status({"host": "localhost:8080"} | headers) == expected


def test_any_host_and_origin_is_allowed_by_setting() -> None:
    guard = Guard.of("localhost", ["*"], ["*"])
    assert status({"host": "evil.example", "origin": "http://evil.example"}, guard=guard) is None


@pytest.mark.parametrize("path", ["/status.html", "/admin/v2/brokers/ready"])
def test_probes_are_served_under_any_name(path: str) -> None:
    assert status({"host": "load-balancer.internal"}, path) is None


@pytest.mark.parametrize(
    "path", ["/%61dmin/v2/clusters", "/admin/v2%2fclusters", "/admin%2Fv2/x", "/admin/v2/%2e%2E/x"]
)
def test_a_route_has_one_spelling(path: str) -> None:
    assert status({"host": "localhost"}, path) == 400


def test_names_that_need_escapes_are_served() -> None:
    assert status({"host": "localhost"}, "/admin/v2/persistent/public/default/a%20b%3Ac%C3%A9%7E%25/stats") is None


SETTING = "/admin/v2/brokers/configuration/logLevel"


@pytest.mark.parametrize("value", ["%7B%22a%2Fb%22%3A%22https%3A%2F%2Fexample.com%2F%22%7D", "%44EBUG", "a%2fb/c%2Fd"])
def test_the_value_of_a_setting_may_have_any_escapes(value: str) -> None:
    assert status({"host": "localhost"}, f"{SETTING}/{value}", method="POST") is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/brokers/configuration/here/%6FwnedNamespaces"),
        ("DELETE", f"{SETTING}/a%2Fb"),
        ("DELETE", "/admin/v2/brokers/configuration/log%4Cevel"),
        ("POST", "/admin/v2/brokers/configuration/log%4Cevel/DEBUG"),
        ("POST", "/admin/v2/brokers/configuration/logLevel%2FDEBUG"),
        ("POST", "/admin/v2/brokers/configuration%2FlogLevel/DEBUG/x"),
        ("POST", "/%61dmin/v2/brokers/configuration/logLevel/DEBUG"),
        ("POST", "/admin/v2/brokers/configuration//%2Fx"),
        ("POST", f"/lookup{SETTING}/a%2Fb"),
    ],
)
def test_no_other_path_has_more_spellings_than_one(method: str, path: str) -> None:
    assert status({"host": "localhost"}, path, method=method) == 400


def test_web_pages_of_others_change_no_setting_by_its_value() -> None:
    headers = {"host": "localhost", "origin": "http://evil.example"}
    assert status(headers, f"{SETTING}/a%2Fb", method="POST") == 403
