"""Features that brokers of two versions on one root know, or do not know."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pulsar_on_spark.metadata import features
from pulsar_on_spark.metadata.records import BrokerRecord, IncarnationRecord, ListenerUrls, RootRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.brokers import decide_register

OLDER = BrokerRecord(
    broker="older:8080",
    incarnation="i",
    default_listener=ListenerUrls(service_url="pulsar://older:6650"),
    host="older",
    version="0.1.0",
    features=(features.BUNDLES,),
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def use(store: MetadataStore, feature: str) -> set[str]:
    """Put a feature into the root; returns all that it has then."""

    def decide(view: View) -> Change | None:
        puts, moves = features.using(view, feature)
        return Change(puts=list(puts), keys=dict(moves)) if puts else None

    store.commit(decide)
    record = store.view().get(RootRecord, "root")
    assert record is not None
    return set(record.features)


def of_incarnation(state: str) -> IncarnationRecord:
    return IncarnationRecord.model_validate({"incarnation": "i", "state": state})


def test_a_feature_waits_until_every_broker_that_runs_knows_it(memory_path: Path) -> None:
    store = Root.create(memory_path / "root").store
    store.commit(lambda _: Change(puts=[OLDER, of_incarnation("OPEN")], keys={"incarnation/i": None}))
    assert features.BUNDLES in use(store, features.BUNDLES)
    with pytest.raises(InvalidArgumentError, match=r"older:8080 \(version 0\.1\.0\) does not know .*copy-generations"):
        use(store, features.COPY_GENERATIONS)
    store.commit(lambda _: Change(puts=[of_incarnation("CLOSED")], keys={"incarnation/i": None}))
    assert features.COPY_GENERATIONS in use(store, features.COPY_GENERATIONS)


def test_a_broker_that_registers_meanwhile_is_seen(memory_path: Path) -> None:
    store = Root.create(memory_path / "root").store
    store.commit(lambda _: Change(puts=[of_incarnation("OPEN")], keys={"incarnation/i": None}))
    looks = []

    def decide(view: View) -> Change | None:
        puts, moves = features.using(view, features.COPY_GENERATIONS)
        looks.append(view.version)
        if len(looks) == 1:
            Root.open(memory_path / "root").store.commit(lambda _: decide_register(OLDER))
        return Change(puts=list(puts), keys=dict(moves))

    with pytest.raises(InvalidArgumentError, match="does not know"):
        store.commit(decide)
    assert len(looks) == 1, "the second look refused"
