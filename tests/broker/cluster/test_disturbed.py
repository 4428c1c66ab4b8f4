"""Brokers are disturbed again and again under load, and every promise is kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.broker.cluster.disturbed_load import Disturbance, Run, judge
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.restarting_broker import RestartingBroker
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.store_cluster import StoreCluster

pytestmark = pytest.mark.long


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    print(judge(Run(root, tmp_path, partial(RestartingBroker, root), "kill", times=2)))


@pytest.mark.parametrize("disturbance", ["kill", "kill_all", "pause", "restart", "move"])
def test_one_or_all_of_three_brokers(tmp_path: Path, disturbance: Disturbance) -> None:
    root = tmp_path / "root"
    print(judge(Run(root, tmp_path, partial(BrokerCluster, root), disturbance, times=2)))


@pytest.mark.parametrize("disturbance", ["kill", "cut", pytest.param("outage", marks=pytest.mark.soak)])
def test_three_brokers_of_a_root_on_a_store(tmp_path: Path, s3_server: S3Server, disturbance: Disturbance) -> None:
    bucket, options = s3_server.make_bucket(), s3_server.options()
    root, profile = f"{bucket}/root", tmp_path / "profile.toml"
    write_profile(profile, bucket, options)
    brokers = partial(StoreCluster, root, s3_server.url, options, tmp_path)
    times = 1 if disturbance == "outage" else 2
    print(judge(Run(root, tmp_path, brokers, disturbance, times, variables={FILE_VARIABLE: str(profile)})))
