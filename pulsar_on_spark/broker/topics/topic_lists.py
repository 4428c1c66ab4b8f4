"""The topics of a namespace as clients with a regular expression ask for them (GET_TOPICS_OF_NAMESPACE). Pure.

The broker does not apply the client's `topics_pattern` (`filtered` stays false, and clients filter themselves): a
pattern is in the dialect of the client's language. Only who watches a list (`TopicListWatcher`) gets it filtered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from crc32c import crc32c

from pulsar_on_spark.model.names import NON_PERSISTENT, PERSISTENT, TopicName

SYSTEM_NAMESPACE: Final = "pulsar/system"
_SYSTEM_PREFIX: Final = "__"
"""Begins the names of what brokers keep for themselves: `__change_events`, `__transaction_buffer_snapshot`, ..."""

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
_DOMAINS: Final[dict[Mode, tuple[str, ...]]] = {
    "PERSISTENT": (PERSISTENT,),
    "NON_PERSISTENT": (NON_PERSISTENT,),
    "ALL": (PERSISTENT, NON_PERSISTENT),
}


class TopicList(NamedTuple):
    """The answer to a client.

    Attributes:
        topics: Full names, partitions one by one, sorted; none if nothing has changed.
        topics_hash: Of all of them.
        changed: False if the client has this very list.
    """

    topics: list[str]
    topics_hash: str
    changed: bool


def list_topics(names: Iterable[str], namespace: str, mode: Mode, known_hash: str = "") -> TopicList:
    """What a client is told.

    Args:
        names: Full names of topics and partitions in their one form, also of other namespaces.
        namespace: `tenant/namespace`.
        mode: Which ones it wants.
        known_hash: Of the list that it has; "" if it has none.
    """
    # Names in their one form are compared as texts: parsing ten thousand of them would hold other clients up.
    prefixes = tuple(f"{domain}://{namespace}/" for domain in _DOMAINS[mode]) if namespace != SYSTEM_NAMESPACE else ()
    found = sorted(
        name
        for name in set(names)
        if name.startswith(prefixes) and not name.startswith(_SYSTEM_PREFIX, name.rindex("/") + 1)
    )
    topics_hash = hash_of(found)
    changed = topics_hash != known_hash
    return TopicList(found if changed else [], topics_hash, changed)


def hash_of(topics: Iterable[str]) -> str:
    """Pulsar's hash of a list of topics (its `TopicList.calculateHash`): Guava's CRC32C, lowest byte first, in hex."""
    in_java_order = sorted(topics, key=lambda name: name.encode("utf-16-be"))
    return crc32c(",".join(in_java_order).encode()).to_bytes(4, "little").hex()


def is_system(name: TopicName) -> bool:
    """Whether a topic is a broker's own and not shown to regular expressions."""
    return name.local.startswith(_SYSTEM_PREFIX) or name.namespace == SYSTEM_NAMESPACE
