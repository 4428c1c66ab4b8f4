"""A broker with an authentication plug-in that an installed package brings, with a method of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from tests.kit.running_broker import RunningBroker

LIMIT_S = 20
PLUG_IN = """
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal


class Badges:
    method = "badge"

    @classmethod
    def from_settings(cls, settings):
        return cls()

    async def authenticate(self, evidence):
        role, _, metal = (evidence.headers.get("x-badge") or evidence.data.decode()).partition(" ")
        if metal != "gold":
            raise NotAuthenticatedError(Failure.SIGNATURE, "it is not a badge")
        return Principal(role)
"""
NAMED = {"X-Pulsar-Auth-Method-Name": "badge"}
GOLD = {"X-Badge": "alice gold"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("plugged")
    (folder / "badges.py").write_text(PLUG_IN)
    about = folder / "badges-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: badges\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pulsarpy.authentication]\nbadges = badges:Badges\n")
    (folder / "htpasswd").write_text("bob:$2b$04$hOWSD.xpWrG9f7L5dgVjIOhZ4vN9RG0mZDoaW/SoXYgxgEVtPh0CK\n")
    (folder / "htpasswd").chmod(0o600)
    settings = {
        "authentication_enabled": "true",
        "authentication_providers": "badges,basic",
        "basic_auth_conf": folder / "htpasswd",
        "authorization_enabled": "true",
        "super_user_roles": "alice",
    }
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with RunningBroker(folder / "root", settings, prefix=["env", f"PYTHONPATH={path}"]) as running:
        yield running


def status(broker: RunningBroker, **headers: str) -> int:
    return httpx.get(f"{broker.web_url}/admin/v2/tenants", headers=headers, timeout=LIMIT_S).status_code


def test_a_request_that_names_the_method_is_authenticated_by_its_headers(broker: RunningBroker) -> None:
    assert status(broker, **NAMED, **GOLD) == 200
    assert status(broker, **NAMED, **GOLD, Authorization="Badge of another scheme") == 200


@pytest.mark.parametrize(
    "headers", [GOLD, NAMED, NAMED | {"X-Badge": "alice iron"}, GOLD | {"X-Pulsar-Auth-Method-Name": "basic"}]
)
def test_other_requests_are_refused(broker: RunningBroker, headers: dict[str, str]) -> None:
    assert status(broker, **headers) == 401


def test_the_role_is_the_plug_ins(broker: RunningBroker) -> None:
    url = f"{broker.web_url}/admin/v2/namespaces/public"
    refused = httpx.get(url, headers=NAMED | {"X-Badge": "mallory gold"}, timeout=LIMIT_S)
    assert (refused.status_code, "'mallory'" in refused.json()["reason"]) == (401, True)
