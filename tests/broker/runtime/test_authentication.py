"""The providers that settings name: Pulsar's names, those that are not built in, and plug-ins of installed packages."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.broker.runtime.authentication import authentication_of
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.authentication import NO_CLAIM, Authentication
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError

PACKAGE = "org.apache.pulsar.broker.authentication."
PLUG_IN = """
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal


class Badges:
    method = "badge"

    def __init__(self, cluster):
        self.cluster = cluster

    @classmethod
    def from_settings(cls, settings):
        return cls(settings["cluster_name"])

    async def authenticate(self, evidence):
        badge = evidence.data.decode()
        if badge == "broken":
            raise ZeroDivisionError(badge)
        if badge == "empty":
            return Principal("")
        if not badge.endswith("@" + self.cluster):
            raise NotAuthenticatedError(Failure.SIGNATURE, "it is not a badge of this cluster")
        return Principal(badge.partition("@")[0])


class Closed:
    @classmethod
    def from_settings(cls, settings):
        raise RuntimeError("there is no door")


class Nameless:
    method = ""

    @classmethod
    def from_settings(cls, settings):
        return cls()
"""
ENTRY_POINTS = """
[pulsarpy.authentication]
badges = badges_of_a_test:Badges
closed = badges_of_a_test:Closed
nameless = badges_of_a_test:Nameless
missing = badges_of_a_test:Missing
"""


def authentication(*providers: str, **settings: Any) -> Authentication:
    made = authentication_of(
        BrokerSettings(authentication_enabled=True, authentication_providers=providers, **settings)
    )
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (f"{PACKAGE}AuthenticationProviderSasl", "SASL .Kerberos. is not built in: .*entry point group"),
        (f"{PACKAGE}AuthenticationProviderAthenz", "Athenz is not built in: .*entry point group"),
        ("kerberos", "Kerberos"),
        ("badgers", "not supported: give token, openid, basic, tls or an installed entry point"),
        ("openid", "needs issuers and audiences: set open_id_allowed_token_issuers"),
    ],
)
def test_providers_that_cannot_be_used_say_what_to_do(provider: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        authentication(provider)


@pytest.mark.parametrize("issuer", ["http://issuer.example.com", "issuer.example.com", "file:///etc/passwd"])
def test_issuers_need_https(issuer: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an https URL: correct it"):
        authentication("openid", open_id_allowed_token_issuers=[issuer], open_id_allowed_audiences=["pulsar"])


def test_issuers_without_https_need_a_setting() -> None:
    names = {"open_id_allowed_token_issuers": ["http://localhost"], "open_id_allowed_audiences": ["pulsar"]}
    (found,) = authentication("openid", open_id_require_issuers_use_https=False, **names).providers
    assert found.name == "AuthenticationProviderOpenID"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package, as an installer leaves it."""
    (tmp_path / "badges_of_a_test.py").write_text(PLUG_IN)
    about = tmp_path / "badges_of_a_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: badges-of-a-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "badges_of_a_test", raising=False)
    return tmp_path


def by(found: Authentication, badge: str) -> str:
    return asyncio.run(found.authenticate("badge", Evidence(badge.encode()), NO_CLAIM)).role


@pytest.mark.usefixtures("installed")
def test_a_plug_in_authenticates_clients_of_its_method() -> None:
    found = authentication("badges", cluster_name="here")
    assert by(found, "alice@here") == "alice"
    for badge, failure in (
        ("alice@there", Failure.SIGNATURE),
        ("broken", Failure.PLUGIN),
        ("empty", Failure.ROLE),
        ("x" * 1_025 + "@here", Failure.ROLE),
    ):
        with pytest.raises(NotAuthenticatedError) as refused:
            by(found, badge)
        assert (refused.value.failure, refused.value.provider) == (failure, "badges")
        assert badge not in str(refused.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "said"), [("closed", "there is no door"), ("nameless", "no attribute method"), ("missing", "Missing")]
)
def test_a_plug_in_that_cannot_be_loaded_keeps_the_broker_from_starting(name: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"The plug-in '{name}' .*{said}.*: correct it, or leave it out"):
        authentication(name)


def test_two_packages_with_one_name_are_refused(installed: Path) -> None:
    twin = installed / "twins-1.0.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Metadata-Version: 2.1\nName: twins\nVersion: 1.0\n")
    (twin / "entry_points.txt").write_text(ENTRY_POINTS)
    with pytest.raises(InvalidArgumentError, match=r"Several installed packages .*uninstall all but one"):
        authentication("badges")
