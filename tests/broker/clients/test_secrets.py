"""Secrets stay where they are: nothing that a broker at DEBUG writes or answers holds a key, a password or a token.

The same is true of commands that connect to it, and of Spark on its root (CVE-2023-37579, CVE-2025-30677).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt
import httpx
import jwt
import psutil
import pulsar
import pytest
from passlib.hash import apr_md5_crypt

from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles
from tests.kit.waiting import wait_until

TIMEOUT_S = 300
SECRET = b"a-secret-key-of-tokens-0123456789-abcdef"
PASSWORD = "the-password-of-alice-0123456789"
OLD_PASSWORD = "the-password-of-bob-0123456789"
WRONG = "a-wrong-password-0123456789"
CONTENT = "the-content-of-a-message-0123456789"
"""No secret to administrators, but nothing for logs."""
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
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


def token_of(role: str, secret: bytes = SECRET, lives_s: float | None = None) -> str:
    end = {} if lives_s is None else {"exp": time.time() + lives_s}
    return jwt.encode({"sub": role, **end}, secret, "HS256")


@dataclass
class Used:
    """A broker that was used, and all that it answered."""

    broker: RunningBroker
    settings: dict[str, object]
    folder: Path
    files: TlsFiles
    hashed: str
    answers: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    @property
    def secrets(self) -> dict[str, str]:
        """Text that must be nowhere, by its name."""
        return {
            "a token": "eyJhbGciOi",  # `{"alg":` in base64, the begin of all
            "the secret key": SECRET.decode(),
            "the secret key in base64": base64.b64encode(SECRET).decode(),
            "the password": PASSWORD,
            "the password by MD5": OLD_PASSWORD,
            "the wrong password": WRONG,
            "the password's hash": self.hashed.removeprefix("$2b$04$"),
            "the credentials": base64.b64encode(f"alice:{PASSWORD}".encode()).decode(),
            "the private key": self.files.host.key.read_text().splitlines()[1],
        }


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    folder = tmp_path_factory.mktemp("secrets")
    files, users = TlsFiles(folder / "tls"), folder / "users"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users.write_text(f"alice:{hashed}\nbob:{apr_md5_crypt.hash(OLD_PASSWORD)}\n")
    users.chmod(0o600)
    settings = files.settings(
        log_level="DEBUG",
        authentication_enabled="true",
        authentication_providers="token,basic,tls",
        authentication_refresh_check_seconds=0.5,
        authorization_enabled="true",
        super_user_roles="admin",
        token_secret_key=f"data:;base64,{base64.b64encode(SECRET).decode()}",
        basic_auth_conf=users,
        tls_trust_certs_file_path=files.trust,
        audit_log_file=folder / "audit.log",
    )
    # Not forked: what the system shows of a forked process is its parent's command line and environment.
    with RunningBroker(folder / "root", settings, prefix=["env"]) as broker:
        made = Used(broker, settings, folder, files, hashed)
        use(made)
        processes = [psutil.Process(broker.pid), *psutil.Process(broker.pid).children(recursive=True)]
        # The environment of the broker itself holds its settings; nothing is in a command line, or passed on.
        made.arguments = [" ".join(each.cmdline()) for each in processes]
        made.arguments += [repr(each.environ()) for each in processes[1:]]
        yield made


def use(made: Used) -> None:
    """Use the broker as clients and administrators do, with right and wrong credentials."""
    admin = {"Authorization": f"Bearer {token_of('admin')}"}
    with httpx.Client(base_url=made.broker.web_url, timeout=60) as web:
        granted = web.post(
            "/admin/v2/namespaces/public/default/permissions/orders", json=["produce", "consume"], headers=admin
        )
        assert granted.status_code == 204, granted.text
        for authentication in (
            pulsar.AuthenticationToken(token_of("orders")),
            pulsar.AuthenticationToken(token_of("admin", b"x" * 32)),
            pulsar.AuthenticationToken(token_of("admin", lives_s=-1)),
            pulsar.AuthenticationToken(jwt.encode({"sub": "admin"}, None, "none")),
            pulsar.AuthenticationBasic("alice", PASSWORD),
            pulsar.AuthenticationBasic("bob", OLD_PASSWORD),
            pulsar.AuthenticationBasic("alice", WRONG),
        ):
            client = pulsar.Client(made.broker.url, authentication, operation_timeout_seconds=2, logger=SILENT)
            try:
                consumer = client.subscribe("t", "s")
                client.create_producer("t").send(CONTENT.encode())
                consumer.acknowledge(consumer.receive(10_000))
            except pulsar.PulsarException as error:
                made.answers[f"client {len(made.answers)}"] = str(error)
            finally:
                client.close()
        renew_a_token(made.broker)
    refused = {"Authorization": "Basic " + base64.b64encode(f"alice:{WRONG}".encode()).decode()}
    # From an address each: the broker delays answers to an address that failed 20 times.
    for host, name, headers in ((2, "admin", admin), (3, "wrong password", refused), (4, "no credentials", {})):
        transport = httpx.HTTPTransport(local_address=f"127.0.0.{host}")
        with httpx.Client(base_url=made.broker.web_url, transport=transport, headers=headers, timeout=60) as web:
            for path in PATHS:
                answer = web.get(path)
                made.answers[f"{name} {path}"] = f"{answer.headers!r} {answer.text}"


def renew_a_token(broker: RunningBroker) -> None:
    """Each token lives for a second: the client sends others when the broker asks for them."""
    given: list[str] = []

    def supply() -> str:
        given.append(token_of("orders", lives_s=1))
        return given[-1]

    client = pulsar.Client(broker.url, pulsar.AuthenticationToken(supply), logger=SILENT)
    producer = client.create_producer("t")
    wait_until(lambda: len(given) > 2)
    producer.send(b"later")
    client.close()


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for name, secret in secrets.items() if secret in text]


def test_answers_hold_no_secrets(used: Used) -> None:
    assert any("metrics" in name and "pulsar_" in text for name, text in used.answers.items())
    assert {name: found for name, text in used.answers.items() if (found := found_in(text, used.secrets))} == {}


def test_settings_are_masked(used: Used) -> None:
    told = used.answers["admin /admin/v2/brokers/configuration/runtime"]
    for name in ("tokenSecretKey", "basicAuthConf"):
        assert f'"{name}":"**********"' in told


def test_logs_hold_no_secrets(used: Used) -> None:
    said = used.broker.said
    assert "DEBUG" in said
    assert "is not authenticated" in said
    assert found_in(said, used.secrets | {"content": CONTENT}) == []
    audit = (used.folder / "audit.log").read_text()
    assert "orders" in audit
    assert found_in(audit, used.secrets | {"content": CONTENT}) == []


def test_the_root_holds_no_secrets(used: Used) -> None:
    files = [each for each in used.broker.root.rglob("*") if each.is_file()]
    assert len(files) > 10
    held = {each.name: found_in(each.read_bytes().decode("latin-1"), used.secrets) for each in files}
    assert {name: found for name, found in held.items() if found} == {}


def test_processes_show_no_secrets(used: Used) -> None:
    assert len(used.arguments) > 2
    assert "standalone" in used.arguments[0]
    assert [found for text in used.arguments if (found := found_in(text, used.secrets))] == []


# -- the command line --------------------------------------------------------------------------------------------------


def said_by(*arguments: str) -> str:
    done = run_pulsarpy(*arguments)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_commands_say_no_secrets(used: Used) -> None:
    url, closed = ("--url", used.broker.web_url), ("--url", "http://localhost:1")
    token = ("--auth-plugin", "token", "--auth-params")
    basic = ("--auth-plugin", "basic", "--auth-params")
    listing = ("tenants", "list")
    said = [
        said_by(*listing, *url, *token, f"token:{token_of('admin')}"),
        said_by(*listing, *url, *token, f"token:{token_of('admin', b'x' * 32)}"),
        said_by(*listing, *closed, *token, f"token:{token_of('admin')}"),
        said_by(*listing, *url, *token, json.dumps({"tokens": token_of("admin")})),
        said_by(*listing, *url, "--auth-plugin", "kerberos", "--auth-params", token_of("admin")),
        said_by(*listing, *url, *basic, f"userId:alice,password:{WRONG}"),
        said_by(*listing, *url, *basic, f"userId:alice,passwort:{PASSWORD}"),
        said_by(*listing, *url, *basic, f'{{"userId": "alice", "password": "{PASSWORD}"'),
        said_by("produce", "t", "-m", "x", "--url", used.broker.url, *token, f"token:{token_of('orders')}"),
        said_by(*listing, *url, *token[:2], "--auth-parms", token_of("admin")),
    ]
    print(*said, sep="\n")
    assert said[0].startswith("0 ")
    assert "public" in said[0]
    assert [each[:2] for each in said[1:]] == ["1 "] * 7 + ["0 ", "2 "]
    assert [found for text in said if (found := found_in(text, used.secrets))] == []


def is_consumed(used: Used, topic: str) -> bool:
    url = f"{used.broker.web_url}/admin/v2/persistent/public/default/{topic}/stats"
    found = httpx.get(url, headers={"Authorization": f"Bearer {token_of('admin')}"}, timeout=TIMEOUT_S)
    return found.is_success and any(each["consumers"] for each in found.json()["subscriptions"].values())


@pytest.mark.parametrize("given", ["a file", "client.conf"])
def test_ps_shows_no_secrets_of_commands(used: Used, tmp_path: Path, given: str) -> None:
    """A token in `--auth-params` itself would be shown, as the documentation says."""
    file, conf = tmp_path / "token", tmp_path / "client.conf"
    file.write_text(token_of("orders"))
    conf.write_text(f"authPlugin=token\nauthParams=token:{token_of('orders')}\n")
    options: Sequence[str] = ("--auth-plugin", "token", "--auth-params", file.as_uri())
    environment = {}
    if given == "client.conf":
        options, environment = (), {"PULSAR_CLIENT_CONF": str(conf)}
    topic = f"ps-{given.replace(' ', '-')}"
    consume = ("consume", topic, "-s", "s", "--follow", "--url", used.broker.url, *options)
    command = [sys.executable, "-m", "pulsar_on_spark.cli", *consume]
    running = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_consumed(used, topic))
        processes = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
        shown = [f"{each.cmdline()} {each.environ()}" for each in processes]
    finally:
        running.terminate()
        running.wait()
    assert "consume" in shown[0]
    assert [found for text in shown if (found := found_in(text, used.secrets))] == []


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_spark_shows_no_secrets(used: Used, tmp_path: Path) -> None:
    """Plans, progress, errors, logs, event logs and checkpoints, with the broker's settings in the environment."""
    environment = os.environ | {f"PULSARPY_{name.upper()}": str(value) for name, value in used.settings.items()}
    command = [sys.executable, "-m", "tests.broker.clients.spark_app", used.broker.root, tmp_path, token_of("orders")]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    for part in ("Analyzed Logical Plan", "Physical Plan", "refused: ", "numInputRows", "have no effect here"):
        assert part in done.stdout
    assert found_in(done.stdout, used.secrets) == []
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert any("SparkListenerSQLExecutionStart" in each.read_text() for each in files if "events" in each.name)
    assert any("checkpoint" in each.parts for each in files)
    held = {each.name: found_in(each.read_bytes().decode("latin-1"), used.secrets) for each in files}
    assert {name: found for name, found in held.items() if found} == {}
