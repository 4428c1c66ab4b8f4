"""The security of a suite's broker is read from the suite's own files."""

from __future__ import annotations

import stat
from pathlib import Path

import jwt

from conformance.security import TOKEN_ROLE, parse_conf, python_security, snake_case
from pulsar_on_spark.broker.runtime.settings import BrokerSettings

CONF = """# authenticationEnabled=false
brokerServicePortTls=6651
tlsKeyFilePath=test-conf/broker-key.pem
authenticationEnabled=true
tokenSecretKey=file:///pulsar/data/tokens/secret.key
numIOThreads=8
anonymousUserRole=
"""


def test_only_settings_of_security_that_are_set_are_read() -> None:
    assert parse_conf(CONF) == {
        "brokerServicePortTls": "6651",
        "tlsKeyFilePath": "test-conf/broker-key.pem",
        "authenticationEnabled": "true",
        "tokenSecretKey": "file:///pulsar/data/tokens/secret.key",
    }


def test_a_python_suite_gets_private_copies_a_token_and_settings_of_ours(tmp_path: Path) -> None:
    conf = tmp_path / "tests" / "test-conf"
    conf.mkdir(parents=True)
    (conf / "standalone-ssl.conf").write_text(CONF)
    for name in ("broker-cert.pem", "broker-key.pem", "cacert.pem", ".htpasswd"):
        (conf / name).write_text(name)
    made = python_security(tmp_path / "tests", tmp_path / "work")
    settings = made.own_settings
    assert settings.keys() <= BrokerSettings.model_fields.keys()
    key = Path(settings["tls_key_file_path"])
    assert (key.read_text(), stat.S_IMODE(key.stat().st_mode)) == ("broker-key.pem", 0o600)
    assert settings["token_secret_key"] == (tmp_path / "work" / "secret.key").as_uri()
    token = (tmp_path / "tests" / ".test-token.txt").read_text()
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims == {"sub": TOKEN_ROLE}
    assert made.headers["Authorization"].startswith("Bearer ")


def test_names_of_settings_are_those_of_the_broker() -> None:
    assert snake_case("brokerServicePortTls") == "broker_service_port_tls"
    assert snake_case("basicAuthConf") == "basic_auth_conf"
