"""Secrets stay where they are: nothing that a broker at DEBUG writes or answers holds a key, a password or a token."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt
import httpx
import jwt
import psutil
import pulsar
import pytest

from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

SECRET = b"a-secret-key-of-tokens-0123456789-abcdef"
PASSWORD = "the-password-of-alice-0123456789"
WRONG = "a-wrong-password-0123456789"
PATHS = (
    "/metrics",
    "/openapi.json",
    "/status.html",
    "/admin/v2/brokers/configuration",
    "/admin/v2/brokers/configuration/values",
    "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/brokers/internal-configuration",
    "/admin/v2/brokers/health",
    "/admin/v2/brokers/standalone",
    "/admin/v2/clusters/standalone",
    "/admin/v2/storage",
    "/admin/v2/tenants/public",
    "/admin/v2/persistent/public/default/t/stats",
    "/admin/v2/persistent/public/default/t/internalStats",
)


def token_of(role: str, secret: bytes = SECRET) -> str:
    return jwt.encode({"sub": role}, secret, "HS256")


@dataclass
class Used:
    """A broker that was used, and all that it answered."""

    broker: RunningBroker
    folder: Path
    files: TlsFiles
    hashed: str
    answers: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    @property
    def secrets(self) -> dict[str, str]:
        """Text that must be nowhere, by its name; of tokens the signature."""
        return {
            "the secret key": SECRET.decode(),
            "the secret key in base64": base64.b64encode(SECRET).decode(),
            "the password": PASSWORD,
            "the wrong password": WRONG,
            "the password's hash": self.hashed.removeprefix("$2b$04$"),
            "the credentials": base64.b64encode(f"alice:{PASSWORD}".encode()).decode(),
            **{f"the token of {role}": token_of(role).rpartition(".")[2] for role in ("admin", "orders")},
            "the invalid token": token_of("admin", b"x" * 32).rpartition(".")[2],
            "the private key": self.files.host.key.read_text().splitlines()[1],
        }


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    folder = tmp_path_factory.mktemp("secrets")
    files, users = TlsFiles(folder / "tls"), folder / "users"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users.write_text(f"alice:{hashed}\n")
    users.chmod(0o600)
    settings = files.settings(
        log_level="DEBUG",
        authentication_enabled="true",
        authentication_providers="token,basic,tls",
        authorization_enabled="true",
        super_user_roles="admin",
        token_secret_key=f"data:;base64,{base64.b64encode(SECRET).decode()}",
        basic_auth_conf=users,
        tls_trust_certs_file_path=files.trust,
        audit_log_file=folder / "audit.log",
    )
    # Not forked: what the system shows of a forked process is its parent's command line and environment.
    with RunningBroker(folder / "root", settings, prefix=["env"]) as broker:
        made = Used(broker, folder, files, hashed)
        use(made)
        processes = [psutil.Process(broker.pid), *psutil.Process(broker.pid).children(recursive=True)]
        # The environment of the broker itself holds its settings; nothing is in a command line, or passed on.
        made.arguments = [" ".join(each.cmdline()) for each in processes]
        made.arguments += [repr(each.environ()) for each in processes[1:]]
        yield made


def use(made: Used) -> None:
    """Use the broker as clients and administrators do, with right and wrong credentials."""
    admin = {"Authorization": f"Bearer {token_of('admin')}"}
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    with httpx.Client(base_url=made.broker.web_url, timeout=60) as web:
        granted = web.post(
            "/admin/v2/namespaces/public/default/permissions/orders", json=["produce", "consume"], headers=admin
        )
        assert granted.status_code == 204, granted.text
        for authentication in (
            pulsar.AuthenticationToken(token_of("orders")),
            pulsar.AuthenticationToken(token_of("admin", b"x" * 32)),
            pulsar.AuthenticationBasic("alice", PASSWORD),
            pulsar.AuthenticationBasic("alice", WRONG),
        ):
            client = pulsar.Client(made.broker.url, authentication, operation_timeout_seconds=10, logger=silent)
            try:
                consumer = client.subscribe("t", "s")
                client.create_producer("t").send(b"content")
                consumer.acknowledge(consumer.receive(10_000))
            except pulsar.PulsarException as error:
                made.answers[f"client {len(made.answers)}"] = str(error)
            finally:
                client.close()
        refused = {"Authorization": "Basic " + base64.b64encode(f"alice:{WRONG}".encode()).decode()}
        for path in PATHS:
            for name, headers in (("admin", admin), ("wrong password", refused), ("no credentials", {})):
                answer = web.get(path, headers=headers)
                made.answers[f"{name} {path}"] = f"{answer.headers!r} {answer.text}"


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for name, secret in secrets.items() if secret in text]


def test_answers_hold_no_secrets(used: Used) -> None:
    assert any("metrics" in name and "pulsar_" in text for name, text in used.answers.items())
    assert {name: found for name, text in used.answers.items() if (found := found_in(text, used.secrets))} == {}


def test_logs_hold_no_secrets(used: Used) -> None:
    said = used.broker.said
    assert "DEBUG" in said
    assert "is not authenticated" in said
    assert found_in(said, used.secrets) == []
    audit = (used.folder / "audit.log").read_text()
    assert "orders" in audit
    assert found_in(audit, used.secrets) == []


def test_the_root_holds_no_secrets(used: Used) -> None:
    files = [each for each in used.broker.root.rglob("*") if each.is_file()]
    assert len(files) > 10
    held = {each.name: found_in(each.read_bytes().decode("latin-1"), used.secrets) for each in files}
    assert {name: found for name, found in held.items() if found} == {}


def test_processes_show_no_secrets(used: Used) -> None:
    assert len(used.arguments) > 2
    assert [found for text in used.arguments if (found := found_in(text, used.secrets))] == []
