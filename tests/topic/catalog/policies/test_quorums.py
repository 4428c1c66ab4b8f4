"""The number of copies of written data, by the policy `persistence`."""

from __future__ import annotations

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import tenants
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies, set_topic_policies
from pulsar_on_spark.topic.catalog.policies.policies import PersistencePolicies
from pulsar_on_spark.topic.catalog.policies.quorums import MAX_QUORUMS, quorum_for_all, quorum_of
from pulsar_on_spark.topic.maintenance.repair import storage_paths

T, U = TopicName.parse("t"), TopicName.parse("u")


def asks(ensemble: int, write: int, ack: int) -> dict[str, object]:
    return {
        "persistence": {
            "bookkeeperEnsemble": ensemble,
            "bookkeeperWriteQuorum": write,
            "bookkeeperAckQuorum": ack,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
    }


def test_a_topic_over_its_namespace_over_the_root(root: Root) -> None:
    root.create_topic("t", 2)
    root.create_topic("u")
    assert quorum_of(root.store.view(), T, root.quorum) == Quorum(3, 3, 2)
    set_namespace_policies(root, "public/default", asks(2, 2, 1))
    set_topic_policies(root, T, asks(3, 3, 3))
    view = root.store.view()
    assert quorum_of(view, T.partition(1), root.quorum) == Quorum(3, 3, 3)
    assert quorum_of(view, U, root.quorum) == Quorum(2, 2, 1)
    assert quorum_for_all(view, root.quorum) == Quorum(3, 3, 3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (asks(2, 3, 2), "bookkeeperEnsemble >= bookkeeperWriteQuorum >= bookkeeperAckQuorum"),
        (asks(3, 2, 3), "bookkeeperEnsemble >= bookkeeperWriteQuorum >= bookkeeperAckQuorum"),
        (asks(2, 2, 0), "bookkeeperAckQuorum"),
        (asks(4, 2, 2), r"needs 4 storage paths \(quorum 4/2/2\), and the root has 3"),
        (
            {"persistence": {**asks(2, 2, 2)["persistence"], "managedLedgerMaxMarkDeleteRate": -1.0}},
            "MaxMarkDeleteRate",
        ),  # type: ignore[dict-item]
    ],
)
def test_impossible_values_are_refused(root: Root, asked: dict[str, object], message: str) -> None:
    root.create_topic("t")
    with pytest.raises(InvalidArgumentError, match=message):
        set_namespace_policies(root, "public/default", asked)
    with pytest.raises(InvalidArgumentError, match=message):
        set_topic_policies(root, T, asked)
    with pytest.raises(InvalidArgumentError, match=message):
        tenants.create_namespace(root.store, "public/n", policies=asked)
    assert quorum_for_all(root.store.view(), root.quorum) == root.quorum


def test_a_path_that_is_drained_does_not_count(root: Root) -> None:
    storage_paths.drain(root, 2)
    with pytest.raises(InvalidArgumentError, match="the root has 2"):
        set_namespace_policies(root, "public/default", asks(3, 3, 2))


def test_different_quorums_are_bounded(root: Root) -> None:
    for number, (write, ack) in enumerate([(1, 1), (2, 1), (2, 2), (3, 1)]):
        root.create_topic(f"t{number}")
        set_topic_policies(root, TopicName.parse(f"t{number}"), asks(3, write, ack))
    root.create_topic("t")
    assert MAX_QUORUMS == 4
    with pytest.raises(InvalidArgumentError, match="one quorum too many"):
        set_topic_policies(root, T, asks(3, 3, 3))
    set_topic_policies(root, T, asks(2, 2, 2))


def test_a_policy_and_its_quorum() -> None:
    assert PersistencePolicies.of(Quorum(3, 2, 1)).quorum == Quorum(3, 2, 1)
