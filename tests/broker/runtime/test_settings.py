"""Sources of settings, and errors for invalid ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from pulsar_on_spark.broker.runtime.settings import BrokerSettings, load
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.model.errors import InvalidArgumentError


def test_flags_override_the_environment_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("broker_service_port = 1\nweb_service_port = 2\nmax_producers_per_topic = 3\n")
    environment = {"PULSARPY_BROKER_SERVICE_PORT": "10", "PULSARPY_WEB_SERVICE_PORT": "20", "PULSARPY_ROOT": "/root"}
    found = load(file, environment, {"broker_service_port": 100, "log_level": None})
    assert (found.broker_service_port, found.web_service_port, found.max_producers_per_topic) == (100, 20, 3)
    assert found.log_level == "INFO"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("broker_servce_port = 1", "'broker_servce_port' in .*toml is unknown: did you mean broker_service_port"),
        ("zzz = 1", "'zzz' in .*toml is unknown: see docs/configuration.md"),
        ('broker_service_port = "abc"', "'broker_service_port' in .*toml is invalid .*: correct it"),
        (
            "default_num_partitions = 10001",
            "'default_num_partitions' in .*toml .*less than or equal to 10000.: correct",
        ),
        ("a = = 1", "toml is not TOML"),
        (None, "cannot be read .No such file"),
    ],
)
def test_an_unusable_setting_is_named_with_its_source(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "broker.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        load(file, {})


def test_no_setting_is_accepted_that_cannot_be_a_policy() -> None:
    for name, field in BrokerSettings.model_fields.items():
        for value in (-1, 0, 1, 10_001, 2**31, 2**63) if field.annotation in (int, float) else ():
            with suppress(InvalidArgumentError):
                default_policies(load(None, {}, {name: value}))


@pytest.mark.parametrize("given", [{"time_in_minutes": 0}, {"size_in_mb": 0}, {"time_in_minutes": 0, "size_in_mb": 7}])
def test_retention_keeps_nothing_if_time_or_size_is_0(given: dict[str, int]) -> None:
    settings = load(None, {}, {f"default_retention_{name}": value for name, value in given.items()})
    kept = default_policies(settings).retention
    assert (kept.retention_time_in_minutes, kept.retention_size_in_mb) == (0, 0)


def test_an_error_in_the_environment_names_its_variable() -> None:
    with pytest.raises(InvalidArgumentError, match="variable PULSARPY_BROKER_SERVICE_PORT is invalid"):
        load(None, {"PULSARPY_BROKER_SERVICE_PORT": "abc"})


def test_a_port_may_be_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('web_service_port = ""\n')
    found = load(file, {"PULSARPY_BROKER_SERVICE_PORT": "", "PULSARPY_TLS_PROTOCOLS": "TLSv1.3"})
    assert found.broker_service_port is None
    assert found.web_service_port is None
    assert found.broker_service_port_tls is None
    assert found.tls_protocols == ("TLSv1.3",)


def test_javas_key_stores_are_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("tls_enabled_with_key_store = true\n")
    with pytest.raises(InvalidArgumentError, match=r"key stores, which are not supported: .* `openssl pkcs12`"):
        load(file, {})
