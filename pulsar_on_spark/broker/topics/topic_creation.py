"""Topics that clients use before anybody has made them: whether they may be made, and the commits that make them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pulsar_on_spark.broker.commits import Decide, GroupedCommits
from pulsar_on_spark.broker.topics.topic_lists import SYSTEM_NAMESPACE
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import NamespaceRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import MetadataError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic import catalog
from pulsar_on_spark.topic.policies.effective import effective
from pulsar_on_spark.topic.policies.policies import Policies

_Records = Mapping[TopicName, TopicRecord]


class TopicCreation:
    """Creates what is wanted, all that is wanted at once in one commit. Methods belong to the broker's event loop.

    Args:
        commits: Makes the commits.
        defaults: The broker's own policies.
    """

    def __init__(self, commits: GroupedCommits, defaults: Policies) -> None:
        self._commits = commits
        self._defaults = defaults
        self._wanted: dict[TopicName, int | None] = {}
        self._created: asyncio.Future[_Records] | None = None
        self._creating: asyncio.Task[None] | None = None

    async def create(self, view: View, name: TopicName) -> TopicRecord:
        """The record of a topic that is made now, or that somebody else was quicker to make.

        Args:
            view: The metadata, in which it is not there.
            name: The topic.

        Raises:
            TopicNotFoundError: it may not be made by itself, or its namespace does not exist.
            InvalidArgumentError: its namespace has as many topics as it may have.
            MetadataError: the commit failed.
        """
        require_namespace(view, name)
        creation = effective(view, name, self._defaults).auto_topic_creation
        if not creation.allow_auto_topic_creation:
            raise not_there(name)
        if name.namespace == SYSTEM_NAMESPACE:
            raise TopicNotFoundError(f"Topic {name} does not exist: nothing is kept in {SYSTEM_NAMESPACE}.")
        if name.partition_index >= 0:
            raise TopicNotFoundError(
                f"Topic {name} does not exist and is named like a partition: create {name.partitioned_base} with "
                "partitions."
            )
        is_partitioned = creation.topic_type == "partitioned"
        return await self._join(name, creation.default_num_partitions if is_partitioned else None)

    async def _join(self, name: TopicName, partitions: int | None) -> TopicRecord:
        self._wanted[name] = partitions
        if self._created is None:
            self._created = asyncio.get_running_loop().create_future()
        created = self._created
        if self._creating is None:
            self._creating = asyncio.create_task(self._create_all())
        return (await asyncio.shield(created))[name]

    async def _create_all(self) -> None:
        try:
            while (created := self._created) is not None:
                wanted, self._wanted, self._created = self._wanted, {}, None
                try:
                    created.set_result(await self._commits.commit(_decision(wanted)))
                except Exception as error:
                    created.set_exception(_shared(error))
                    created.exception()  # each who waits gets it
        finally:
            self._creating = None


def _decision(wanted: Mapping[TopicName, int | None]) -> Decide[_Records]:
    def decide(view: View, _: Cursors) -> tuple[Change | None, _Records]:
        change = catalog.creation_of_missing(view, wanted)
        new = {} if change is None else {put.name: put for put in change.puts if isinstance(put, TopicRecord)}
        return change, {name: new.get(name.full) or catalog.require_topic(view, name) for name in wanted}

    return decide


def require_namespace(view: View, name: TopicName) -> None:
    """Refuse a topic in a namespace that does not exist: whoever mistypes it must not get one that nobody looks into.

    Raises:
        TopicNotFoundError: there is no such namespace.
    """
    if view.get(NamespaceRecord, name.namespace) is None:
        raise TopicNotFoundError(
            f"Topic {name} does not exist, nor does its namespace: create that with `pulsarpy namespaces create`."
        )


def not_there(name: TopicName) -> TopicNotFoundError:
    """A topic does not exist and is not made."""
    return TopicNotFoundError(f"Topic {name} does not exist: create it with `pulsarpy topics create`.")


def _shared(error: Exception) -> Exception:
    """What everybody is told whose topic was to be created in a commit that failed."""
    return error if isinstance(error, PulsarpyError) else MetadataError(f"Topics could not be created: {error!r}.")
