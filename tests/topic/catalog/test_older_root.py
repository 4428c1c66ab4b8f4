"""A root as an older version left it, its broker killed: it is read unchanged, upgraded, and continues to work."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from pulsar_on_spark.broker.observe import of_root
from pulsar_on_spark.metadata.records import NamespaceRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.status import RootStatus, view_with_journals
from pulsar_on_spark.topic.maintenance.upgrade import upgrade
from tests.kit import messages

GOLDEN = Path(__file__).parents[2] / "golden" / "root-1.tar.xz"
"""See the README beside it for what is in it."""
BY_CLIENTS = [b"m%d" % number for number in range(20)]
BY_SPARK = sorted(b"s%d" % number for number in range(20))
MESSAGES = {"clients": 20, "spark": 20, "typed": 3}
BACKLOG = 13


@pytest.fixture
def root(tmp_path: Path) -> Root:
    with tarfile.open(GOLDEN) as packed:
        packed.extractall(tmp_path / "root", filter="data")
    return Root.open(tmp_path / "root")


def test_an_older_root_is_read_upgraded_and_written(root: Root) -> None:
    found = root.status(verify=True)
    assert_whole(found)
    before = view_with_journals(root, root.store.view(durable=True))
    assert [each.value for each in messages.read(root, "clients", view=before)] == BY_CLIENTS
    (typed,) = [each for each in found.topics if each.name.endswith("/typed")]
    assert typed.schema == "JSON"
    to_come = of_root.peek_of_root(root, TopicName.parse("clients"), "shop", 100)
    assert len(to_come) == 3  # a batch that is acknowledged as a whole is left out
    namespace = before.get(NamespaceRecord, "public/default")
    assert namespace is not None
    assert namespace.policies == {"message_ttl": 500_000_000}
    compacted = {dict(each.columns)["key"]: each.value for each in messages.read_compacted(root, "clients")}
    assert compacted == {b"k0": b"m9", b"k1": b"m7", b"k2": b"m8"}

    assert upgrade(root.path)
    root = Root.open(root.path)
    assert_whole(root.status(verify=True))  # it recovers the dead broker's journal, which maintenance then seals
    maintained = root.maintain()
    assert maintained.problems == ()
    assert maintained.journals.sealed_entries > 0
    after = root.status(verify=True)
    assert_whole(after)
    assert [each.state for each in after.incarnations] in ([], ["CLOSED"])
    assert messages.values(root, "clients") == BY_CLIENTS
    messages.write(root, "clients", [b"new"])
    assert messages.values(root, "clients") == [*BY_CLIENTS, b"new"]
    assert sorted(each or b"" for each in messages.values(root, "spark")) == BY_SPARK


def assert_whole(found: RootStatus) -> None:
    assert {each.name.rpartition("/")[2]: each.messages for each in found.topics} == MESSAGES
    assert [(each.name, each.backlog_messages) for each in found.subscriptions] == [("shop", BACKLOG)]
    assert (found.missing_copies, found.bad_copies, found.losses) == (0, (), ())
