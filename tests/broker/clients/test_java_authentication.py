"""The official Java clients, unmodified, against a broker with TLS, authentication and authorization.

Their scenarios are in `java_admin`. Needs Maven, and its registry: the long runs have them.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
from collections import Counter
from pathlib import Path

import bcrypt
import httpx
import jwt
import pytest

from tests.kit.issuer import AUDIENCE, Issuer
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""With a compiler's run, and downloads the first time."""
SECRET = os.urandom(32)
SCENARIOS = 9
ROLES = ("orders", "supplied", "short")
"""They may produce and consume; `admin` may do everything, and `granted` gets its rights from it."""


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_java_clients_prove_their_roles(tmp_path: Path) -> None:
    files, audit = TlsFiles(tmp_path / "tls"), tmp_path / "audit.log"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.host.certificate, files.host.key)
    files.ca.issue_role("orders")
    with Issuer(context) as issuer:
        issuer.lives_s["short"] = 3
        for name, secret in (("orders", "secret"), ("short", "secret"), ("granted", "secret"), ("wrong", "guess")):
            credentials = {"type": "client_credentials", "client_id": name, "client_secret": secret}
            (files.ca.folder / f"{name}.json").write_text(json.dumps(credentials))
        with RunningBroker(tmp_path / "root", settings(files, issuer, audit)) as broker:
            grant(broker, files)
            arguments = f"{broker.tls_url} {broker.web_tls_url} {issuer.url} {files.ca.folder}"
            done = run(tmp_path, arguments)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-5_000:]
    assert sum(line.startswith("passed ") for line in done.stdout.splitlines()) == SCENARIOS
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    logins = Counter(each["role"] for each in lines if each["operation"] == "LOGIN" and each["decision"] == "allowed")
    assert (logins["supplied"], logins["short"]) == (1, 1), "each had one connection for all of its tokens"
    assert issuer.given["short"] >= 3, "the first one, and others on the same connection"


def settings(files: TlsFiles, issuer: Issuer, audit: Path) -> dict[str, object]:
    users = files.ca.folder / "users"
    users.write_text(f"orders:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    users.chmod(0o600)
    return files.settings(
        tls_trust_certs_file_path=files.trust,
        authentication_enabled="true",
        authentication_providers="token,openid,basic,tls",
        authentication_refresh_check_seconds=0.5,
        token_secret_key=f"data:;base64,{base64.b64encode(SECRET).decode()}",
        basic_auth_conf=users,
        open_id_allowed_token_issuers=issuer.url,
        open_id_allowed_audiences=AUDIENCE,
        open_id_token_issuer_trust_certs_file_path=files.trust,
        authorization_enabled="true",
        super_user_roles="admin",
        audit_log_file=audit,
    )


def grant(broker: RunningBroker, files: TlsFiles) -> None:
    headers = {"Authorization": f"Bearer {jwt.encode({'sub': 'admin'}, SECRET, 'HS256')}"}
    with httpx.Client(base_url=broker.web_tls_url, headers=headers, verify=files.context(), timeout=60) as admin:
        for role in ROLES:
            path = f"/admin/v2/namespaces/public/default/permissions/{role}"
            assert admin.post(path, json=["produce", "consume"]).status_code == 204


def run(folder: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    project = shutil.copytree(HERE / "java_admin", folder / "java", ignore=shutil.ignore_patterns("target"))
    subprocess.run(["mvn", "-q", "compile"], cwd=project, check=True, timeout=TIMEOUT_S)
    return subprocess.run(
        ["mvn", "-q", "exec:java", "-Dexec.mainClass=admin.Authenticated", f"-Dexec.args={arguments}"],
        cwd=project,
        env=os.environ | {"TOKEN_SECRET": base64.b64encode(SECRET).decode()},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
    )
