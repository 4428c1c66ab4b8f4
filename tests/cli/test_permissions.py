"""`pulsarpy permissions` and administrators of tenants: by root and by URL, with our names and pulsar-admin's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from tests.kit.running_broker import RunningBroker

from .test_app import Run, ok, run  # noqa: F401  (a fixture)

SECRET = b"k" * 32


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = {
        "authentication_enabled": "true",
        "authentication_providers": "token",
        "token_secret_key": "data:;base64," + base64.b64encode(SECRET).decode(),
        "authorization_enabled": "true",
        "super_user_roles": "root",
    }
    with RunningBroker(tmp_path_factory.mktemp("permissions") / "root", settings) as running:
        yield running


@pytest.fixture(params=["root", "broker"])
def target(request: pytest.FixtureRequest, broker: RunningBroker, tmp_path: Path) -> list[str]:
    if request.param == "root":
        return ["--root", str(broker.root)]
    return ["--url", broker.web_url, *credentials("root")]


def credentials(role: str) -> list[str]:
    return ["--auth-plugin", "token", "--auth-params", f"token:{jwt.encode({'sub': role}, SECRET, 'HS256')}"]


@pytest.mark.parametrize("of", ["public/default", "orders", "non-persistent://public/default/orders"])
def test_permissions_are_granted_listed_and_revoked(run: Run, target: list[str], of: str) -> None:  # noqa: F811
    said = ok(run("permissions", "grant", of, "--role", "a", "--actions", "produce,consume", *target))
    assert said == f"Granted produce, consume on {of} to a.\n"
    assert json.loads(ok(run("permissions", "list", of, "--json", *target))) == {"a": ["produce", "consume"]}
    assert "produce, consume" in ok(run("permissions", "list", of, *target))
    assert "Revoked" in ok(run("permissions", "revoke", of, "--role", "a", *target))
    assert json.loads(ok(run("permissions", "list", of, "--json", *target))) == {}


def test_the_help_says_which_actions_have_no_effect(run: Run) -> None:  # noqa: F811
    shown = " ".join(ok(run("permissions", "grant", "--help")).replace("│", " ").split())
    assert "functions, sources, sinks and packages have no effect" in shown


def test_names_of_pulsar_admin_work(run: Run, target: list[str]) -> None:  # noqa: F811
    for of, group, plural in (("public/default", "namespaces", ""), ("orders", "topics", "s")):
        ok(run(group, f"grant-permission{plural}", of, "--role", "a", "--actions", "consume", *target))
        assert json.loads(ok(run(group, "permissions", of, "--json", *target))) == {"a": ["consume"]}
        ok(run(group, f"revoke-permission{plural}", of, "--role", "a", *target))


def test_subscriptions_are_granted_listed_and_revoked(run: Run, target: list[str]) -> None:  # noqa: F811
    of = ("public/default", "--subscription", "s")
    assert "to a, b alone" in ok(run("permissions", "grant-subscription", *of, "--roles", "a,b", *target))
    assert "a, b" in ok(run("permissions", "list-subscriptions", "public/default", *target))
    ok(run("namespaces", "revoke-subscription-permission", *of, "--role", "a", *target))
    shown = ok(run("namespaces", "subscription-permission", "public/default", "--json", *target))
    assert json.loads(shown) == {"s": ["b"]}
    ok(run("permissions", "revoke-subscription", *of, "--role", "b", *target))
    assert json.loads(ok(run("permissions", "list-subscriptions", "public/default", "--json", *target))) == {}


def test_mistakes_are_refused_in_one_sentence(run: Run, target: list[str]) -> None:  # noqa: F811
    for typed in (
        ("grant", "absent/n", "--role", "a", "--actions", "produce"),
        ("grant", "public/default", "--role", "", "--actions", "produce"),
        ("grant", "public/default", "--role", "a", "--actions", "write"),
        ("revoke", "orders", "--role", "absent"),
        ("list", "absent/n"),
        ("grant-subscription", "public/default", "--subscription", "s", "--roles", ""),
        ("revoke-subscription", "public/default", "--subscription", "absent", "--role", "a"),
        ("list-subscriptions", "absent/n"),
    ):
        done = run("permissions", *typed, *target)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err


def test_administrators_of_a_tenant(run: Run, broker: RunningBroker, target: list[str]) -> None:  # noqa: F811
    tenant = "by-" + target[0].strip("-")
    ok(run("tenants", "create", tenant, "--admin-roles", "a,b", "--admin-role", "c", *target))
    ok(run("tenants", "update", tenant, "-r", "keeper", *target))
    keeper = ["--url", broker.web_url, *credentials("keeper")]
    ok(run("namespaces", "create", f"{tenant}/n", *keeper)) if target[0] == "--url" else None
    refused = run("tenants", "list", *keeper)
    assert (refused.code, "keeper" in refused.err, "super_user_roles" in refused.err) == (1, True, True)
    assert "--admin-roles is missing" in run("tenants", "update", tenant, *target).err
