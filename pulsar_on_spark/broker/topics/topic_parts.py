"""The services and settings that all topics of a broker share."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.broker.producing.topic_dedup import DedupStore
from pulsar_on_spark.broker.reading.follower import ChainFollower
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.topic.catalog.policies.policies import Policies


@dataclass(slots=True)
class TopicParts:
    """The services and settings that all topics of a broker share.

    A topic uses changed settings from the next call of `BrokerTopic.follow_record` on.
    """

    store: MetadataStore
    journals: Journals
    path: PublishPath
    follower: ChainFollower
    keeper: CursorKeeper
    reader: EntryReader
    dispatch: DispatchLimits
    dedups: DedupStore
    defaults: Policies
    """The broker's default policies."""
    publish_rate: Throttle
    """The publish rate of all topics together, also of non-persistent ones."""
