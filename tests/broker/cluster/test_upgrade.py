"""Brokers of two versions on one root: an earlier one, and the present one, which knows a feature more."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.broker.cluster.disturbed.runs import Run, judge
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.installed_version import install_commit
from tests.kit.running_broker import RUN_COMMAND, RunningBroker

pytestmark = pytest.mark.long

EARLIER = "bd585ab1ab41b832a0b4338cb6ba3d90cbcdb3a5"
"""The first commit with all of bundles and takeover."""
KNOWING = """
from pulsar_on_spark.broker.cluster import registry
from pulsar_on_spark.metadata import features, store
features.FEATURES = store.FEATURES = registry.FEATURES = features.FEATURES | {"telepathy"}
"""
"""Lets the present version know a feature that no other one knows."""
USING = f"""{KNOWING}
import sys
from functools import partial
from pulsar_on_spark import Root
from pulsar_on_spark.metadata.store import Change

def decide(view):
    puts, moves = features.using(view, "telepathy")
    return Change(puts=list(puts), keys=dict(moves))

Root.open(sys.argv[1]).store.commit(decide)
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "run.py").write_text(RUN_COMMAND)
    return str(install_commit(EARLIER, folder)), str(folder / "run.py")


@pytest.fixture
def present(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "present.py").write_text(KNOWING + RUN_COMMAND)
    return sys.executable, str(tmp_path / "present.py")


def use_the_feature(root: Path) -> str:
    """Put the feature into a root; returns the last line of what that said."""
    run = subprocess.run([sys.executable, "-c", USING, str(root)], capture_output=True, text=True, check=False)
    return (run.stderr.strip().splitlines() or [""])[-1]


def test_a_feature_is_put_into_use_once_the_last_earlier_broker_has_ended(
    tmp_path: Path, earlier: tuple[str, ...], present: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    with RunningBroker(root, prefix=earlier) as old, RunningBroker(root, prefix=present):
        name = old.web_url.removeprefix("http://")
        assert f"Broker {name} (version 0.1.0) does not know the feature telepathy" in use_the_feature(root)
        assert old.stop() == 0
        assert use_the_feature(root) == ""
        with pytest.raises(RuntimeError, match="uses telepathy, which this version of pulsar_on_spark does not know"):
            RunningBroker(root, prefix=earlier)


def test_brokers_are_upgraded_and_one_is_taken_back_under_load(
    tmp_path: Path, earlier: tuple[str, ...], present: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    brokers = partial(BrokerCluster, root, versions=(earlier, present))
    print(judge(Run(root, tmp_path, brokers, "upgrade", times=4)))
