"""One client's watch on the topics of a namespace that match its regular expression (WATCH_TOPIC_LIST). Pure.

The expression is Pulsar's: for names without `persistent://`, of partitioned topics without `-partition-N`. The broker
has to apply it, as clients subscribe to whatever they are told of. It does so with RE2, which knows no look-ahead and
no back-references, and is never slow: a client with another expression is refused, and polls instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.broker.topics.topic_lists import TopicList, hash_of, is_system
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName

_SCHEME: Final = re.compile(r"^(\^?)[a-z-]+://")


class ListChange(NamedTuple):
    """What is new to a client.

    Attributes:
        new: Topics and partitions that it does not know, sorted.
        deleted: Those that are gone, sorted.
        topics_hash: Of all that it knows then.
    """

    new: list[str]
    deleted: list[str]
    topics_hash: str


class TopicListWatcher:
    """A watch; it begins with nothing.

    Args:
        namespace: `tenant/namespace`.
        pattern: The client's expression.

    Raises:
        InvalidArgumentError: it is none, or not one that can be applied here.
    """

    def __init__(self, namespace: str, pattern: str) -> None:
        self._namespace = namespace
        bare = _SCHEME.sub(r"\1", pattern)
        self._pattern = rf"\A(?:{bare})\z"  # the whole name, as Java's `matches`
        self._matching: set[str] = set()
        try:
            self._matches([""])
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(
                f"The pattern {pattern!r} cannot be watched here ({error}): poll, or use one that RE2 knows."
            ) from error

    def begin(self, names: Collection[str], known_hash: str) -> TopicList:
        """All that matches, for a client that may have it already."""
        self._matching = set(self._matched(names))
        topics_hash = hash_of(self._matching)
        changed = topics_hash != known_hash
        return TopicList(sorted(self._matching) if changed else [], topics_hash, changed)

    def change(self, came: Iterable[str], went: Collection[str]) -> ListChange | None:
        """Topics came and went in the root; None if that is no news to the client."""
        new = [name for name in self._matched(came) if name not in self._matching]
        deleted = sorted(self._matching.intersection(went))
        if not new and not deleted:
            return None
        self._matching = self._matching.difference(deleted).union(new)
        return ListChange(sorted(new), deleted, hash_of(self._matching))

    def _matched(self, names: Iterable[str]) -> list[str]:
        parsed = [TopicName.parse_any(name) for name in names]
        found = [name for name in parsed if name.namespace == self._namespace and not is_system(name)]
        bases = [name.partitioned_base.full.partition("://")[2] for name in found]
        return [name.full for name, is_match in zip(found, self._matches(bases), strict=True) if is_match]

    def _matches(self, texts: list[str]) -> list[bool]:
        matched: list[bool] = pc.match_substring_regex(pa.array(texts, pa.string()), self._pattern).to_pylist()
        return matched
