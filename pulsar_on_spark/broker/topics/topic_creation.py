"""Automatic creation of topics at their first use: the rules that allow it, and commits that creations share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pulsar_on_spark.broker.runtime.commits import Decide, GroupedCommits
from pulsar_on_spark.broker.topics.creation_rate import MAX_PER_BROKER_S, CreationRate
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import NamespaceRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, MetadataError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.names import SYSTEM_NAMESPACE, TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.topic_limits import NO_LIMITS, TopicLimits

_Outcomes = Mapping[TopicName, TopicRecord | InvalidArgumentError]
"""The record of each topic, or the reason why it was refused."""


class TopicCreation:
    """Creation of missing topics; concurrent creations share a commit. Call all methods in the broker's event loop.

    Args:
        commits: The group commit of the metadata.
        defaults: The broker's default policies.
        limits: The limits of new topics.
    """

    def __init__(self, commits: GroupedCommits, defaults: Policies, limits: TopicLimits = NO_LIMITS) -> None:
        self._commits = commits
        self._defaults = defaults
        self._limits = limits
        self._rate = CreationRate(MAX_PER_BROKER_S)
        self._wanted: dict[TopicName, int | None] = {}
        self._created: asyncio.Future[_Outcomes] | None = None
        self._creating: asyncio.Task[None] | None = None

    async def create(self, view: View, name: TopicName, rate: CreationRate) -> TopicRecord:
        """Create a topic, unless another client has just created it, and return its record.

        Args:
            view: The metadata, in which the topic is missing.
            name: The topic.
            rate: The rate at which the client may create topics.

        Raises:
            TopicNotFoundError: automatic creation is off, or the topic's namespace does not exist.
            InvalidArgumentError: the namespace has reached its limit of topics, or the topic's name is too long.
            ServerRefusalError: topics are created too fast.
            MetadataError: the commit failed.
        """
        return await self._join(name, self._default_partitions(view, name), rate)

    async def create_partitioned(self, view: View, name: TopicName, rate: CreationRate) -> TopicRecord | None:
        """Create a topic as `create` if automatic creation makes partitioned topics; else return None, creating none.

        Clients request the number of partitions before they use a topic, and also of topics that they never use (Go's
        client does, for retry topics under old names). So a topic without partitions is only created by its first
        producer or consumer. This is Pulsar's rule (`fetchPartitionedTopicMetadataCheckAllowAutoCreationAsync`).
        """
        partitions = self._default_partitions(view, name)
        return None if partitions is None else await self._join(name, partitions, rate)

    def _default_partitions(self, view: View, name: TopicName) -> int | None:
        """Return the number of partitions of an automatically created topic; None for none (errors as `create`)."""
        require_namespace(view, name)
        creation = effective_policies(view, name, self._defaults).auto_topic_creation
        if not creation.allow_auto_topic_creation:
            raise not_there(name)
        if name.namespace == SYSTEM_NAMESPACE:
            raise TopicNotFoundError(f"Topic {name} does not exist: namespace {SYSTEM_NAMESPACE} has no topics.")
        if name.partition_index >= 0:
            raise TopicNotFoundError(
                f"Topic {name} does not exist and is named like a partition: create {name.partitioned_base} with "
                "partitions."
            )
        return creation.default_num_partitions if creation.topic_type == "partitioned" else None

    async def _join(self, name: TopicName, partitions: int | None, rate: CreationRate) -> TopicRecord:
        await rate.wait_for_turn()
        await self._rate.wait_for_turn()
        self._wanted[name] = partitions
        if self._created is None:
            self._created = asyncio.get_running_loop().create_future()
        created = self._created
        if self._creating is None:
            self._creating = asyncio.create_task(self._create_all())
        outcome = (await asyncio.shield(created))[name]
        if isinstance(outcome, InvalidArgumentError):
            raise outcome
        return outcome

    async def _create_all(self) -> None:
        try:
            while (created := self._created) is not None:
                wanted, self._wanted, self._created = self._wanted, {}, None
                try:
                    created.set_result(await self._commits.commit(_decision(wanted, self._limits)))
                except Exception as error:
                    created.set_exception(_shared(error))
                    created.exception()  # raised in every waiting caller
        finally:
            self._creating = None


def _decision(wanted: Mapping[TopicName, int | None], limits: TopicLimits) -> Decide[_Outcomes]:
    def decide(view: View, _: Cursors) -> tuple[Change | None, _Outcomes]:
        change, refused = catalog.creation_of_missing(view, wanted, limits)
        new = {} if change is None else {put.name: put for put in change.puts if isinstance(put, TopicRecord)}
        return change, {
            name: refused.get(name) or new.get(name.full) or catalog.require_topic(view, name) for name in wanted
        }

    return decide


def require_namespace(view: View, name: TopicName) -> None:
    """Require that the namespace of a new topic exists: a mistyped name must not create a topic that nothing reads.

    Raises:
        TopicNotFoundError: the namespace does not exist.
    """
    if view.get(NamespaceRecord, name.namespace) is None:
        raise TopicNotFoundError(
            f"Topic {name} does not exist, nor does its namespace: create the namespace with `pulsarpy namespaces "
            "create`."
        )


def not_there(name: TopicName) -> TopicNotFoundError:
    """Return the error for a missing topic that is not created automatically."""
    return TopicNotFoundError(f"Topic {name} does not exist: create it with `pulsarpy topics create`.")


def _shared(error: Exception) -> Exception:
    """Return the error that every creation that shared a failed commit gets; an unexpected error as MetadataError."""
    return error if isinstance(error, PulsarpyError) else MetadataError(f"Topics could not be created: {error!r}.")
