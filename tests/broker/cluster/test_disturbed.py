"""Brokers are disturbed again and again under load, and every promise is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.broker.cluster.disturbed.runs import (
    Disturbance,
    Run,
    judge,
    on_disk,
    on_network,
    on_store,
    telling,
    with_other_clocks,
)
from tests.kit.client_programs import Command, build_all
from tests.kit.network_cluster import require_namespaces
from tests.kit.restarting_broker import RestartingBroker
from tests.kit.s3_server import S3Server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Command]:
    """Return the programs with Go and Java clients, as far as these languages are installed."""
    return build_all(tmp_path_factory.mktemp("programs"))


def test_an_error_tells_what_the_brokers_and_the_clients_have_said(tmp_path: Path) -> None:
    (tmp_path / "programs.log").write_text("a client's word")
    with (
        pytest.raises(ValueError, match="broken") as raised,
        RestartingBroker(tmp_path / "root") as broker,
        telling(broker, tmp_path),
    ):
        raise ValueError("broken")
    (note,) = raised.value.__notes__
    assert broker.url in note
    assert "a client's word" in note


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    print(judge(Run(root, tmp_path, partial(RestartingBroker, root), "kill", times=2)))


@pytest.mark.parametrize("disturbance", ["kill", "kill_all", "pause", "restart", "move"])
def test_one_or_all_of_three_brokers(tmp_path: Path, disturbance: Disturbance, programs: Mapping[str, Command]) -> None:
    print(judge(replace(on_disk(tmp_path, disturbance, times=2), programs=programs)))


@pytest.mark.parametrize("disturbance", ["kill", "cut", "outage"])
def test_three_brokers_of_a_root_on_a_store(
    tmp_path: Path, s3_server: S3Server, disturbance: Disturbance, programs: Mapping[str, Command]
) -> None:
    run = on_store(s3_server, tmp_path, disturbance, times=1 if disturbance == "outage" else 2)
    print(judge(replace(run, programs=programs)))


@pytest.mark.parametrize("disturbance", ["unplug", "part"])
def test_three_brokers_whose_network_is_cut(tmp_path: Path, disturbance: Disturbance) -> None:
    require_namespaces()
    print(judge(on_network(tmp_path, disturbance, times=1 if disturbance == "unplug" else 2)))


def test_three_brokers_whose_clocks_differ_by_hours(tmp_path: Path) -> None:
    print(judge(with_other_clocks(tmp_path, "kill", times=2)))
