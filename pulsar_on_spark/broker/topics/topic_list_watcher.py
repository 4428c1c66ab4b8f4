"""A client's watch of the topics of a namespace that match its regular expression (WATCH_TOPIC_LIST). Pure.

The expression is Pulsar's: it matches names without `persistent://` and, of partitioned topics, without `-partition-N`.
The broker must apply it, because clients subscribe to every topic of an update. It uses RE2, which runs in linear time
but has no look-ahead and no back-references: a client with such an expression is refused, and polls instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.broker.topics.topic_lists import TopicList, hash_of, topics_in
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import PARTITION_SUFFIX, TopicName

_SCHEME: Final = re.compile(r"^(\^?)[a-z-]+://")


class ListChange(NamedTuple):
    """An update of a client's list.

    Attributes:
        new: Full names of new topics and partitions, sorted.
        deleted: Full names of deleted topics and partitions, sorted.
        topics_hash: The hash of the updated list.
    """

    new: list[str]
    deleted: list[str]
    topics_hash: str


class TopicListWatcher:
    """The state of one watch, whose list of topics is empty until `begin`.

    Args:
        namespace: `tenant/namespace`.
        pattern: The client's regular expression.

    Attributes:
        namespace: The namespace.

    Raises:
        InvalidArgumentError: the expression is invalid in RE2.
    """

    def __init__(self, namespace: str, pattern: str) -> None:
        self.namespace = namespace
        bare = _SCHEME.sub(r"\1", pattern)
        self._pattern = rf"\A(?:{bare})\z"  # the whole name, as Java's `matches`
        self._matching: set[str] = set()
        try:
            self._matches([""])
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(
                f"The pattern {pattern!r} cannot be watched ({error}): poll, or use a pattern that RE2 supports."
            ) from error

    def begin(self, names: Collection[str], known_hash: str) -> TopicList:
        """Begin to watch, and return the matching topics, or only their hash if the client has this list already.

        Args:
            names: Full names of all topics and partitions of the root.
            known_hash: The hash of the client's list; "" if it has none.
        """
        self._matching = set(self._matched(names))
        topics_hash = hash_of(self._matching)
        changed = topics_hash != known_hash
        return TopicList(sorted(self._matching) if changed else [], topics_hash, changed)

    def change(self, came: Iterable[str], went: Collection[str]) -> ListChange | None:
        """Apply changes of the root's topics; return the update for the client, or None if its list does not change.

        Args:
            came: Full names of created topics and partitions.
            went: Full names of deleted topics and partitions.
        """
        new = [name for name in self._matched(came) if name not in self._matching]
        deleted = sorted(self._matching.intersection(went))
        if not new and not deleted:
            return None
        self._matching = self._matching.difference(deleted).union(new)
        return ListChange(sorted(new), deleted, hash_of(self._matching))

    def _matched(self, names: Iterable[str]) -> list[str]:
        candidates = topics_in(names, self.namespace, "PERSISTENT")
        bases = [_base(name).partition("://")[2] for name in candidates]
        return [name for name, is_match in zip(candidates, self._matches(bases), strict=True) if is_match]

    def _matches(self, texts: list[str]) -> list[bool]:
        matched: list[bool] = pc.match_substring_regex(pa.array(texts, pa.string()), self._pattern).to_pylist()
        return matched


def _base(name: str) -> str:
    """Return the full name of the partitioned topic of a partition; any other normalised full name unchanged."""
    return TopicName.parse(name).partitioned_base.full if PARTITION_SUFFIX in name else name
