"""The files beside the pages about deployment: the broker accepts what they give it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from pulsar_on_spark.broker.runtime.settings import load

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_file_is_accepted() -> None:
    file = DOCS / "broker.toml"
    settings = load(file, environment={})
    written = tomllib.loads(file.read_text())
    assert {name: getattr(settings, name) for name in written} == written


def test_the_unit_starts_the_broker_with_that_file_and_may_write_to_the_pages_paths() -> None:
    unit, page = (DOCS / "pulsarpy.service").read_text(), (DOCS / "deploy.md").read_text()
    (root,) = re.findall(r"pulsarpy init (/\S+)", page)
    assert f"broker --root {root} --config /etc/pulsarpy/broker.toml" in unit
    (writable,) = re.findall(r"^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    paths = [Path(each.removeprefix("-")) for each in writable.split()]
    needed = [Path(root), *map(Path, re.findall(r"--storage-path (/\S+)", page))]
    assert len(needed) == 4
    assert [each for each in needed if not any(each.is_relative_to(path) for path in paths)] == []


def test_the_manifests_pods_are_brokers_with_valid_settings_and_names_of_their_own() -> None:
    manifest = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in kubernetes()}
    brokers = manifest["StatefulSet", "pulsarpy"]
    pod = brokers["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each.get("value", "pulsarpy-0") for each in container["env"]}
    given = {name: value.replace("$(POD_NAME)", variables["POD_NAME"]) for name, value in variables.items()}
    settings = load(None, environment={name: given[name] for name in given if name.startswith("PULSARPY_")})
    assert settings.advertised_address == f"pulsarpy-0.{brokers['serviceName']}"
    assert settings.web_service_allowed_hosts == ("pulsarpy",)
    assert pod["terminationGracePeriodSeconds"] > settings.broker_shutdown_timeout_ms / 1000
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"pulsar": settings.broker_service_port, "http": settings.web_service_port}
    for service in ("pulsarpy", brokers["serviceName"]):
        assert manifest["Service", service]["selector"] == brokers["template"]["metadata"]["labels"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/admin/v2/brokers/ready"


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text()))
