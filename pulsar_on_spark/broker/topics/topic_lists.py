"""Lists of a namespace's topics for clients with a regular expression (GET_TOPICS_OF_NAMESPACE). Pure.

The broker does not apply the client's `topics_pattern`, which is in the dialect of the client's language: `filtered`
is false, and clients filter themselves. Only lists of watchers (`TopicListWatcher`) are filtered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from crc32c import crc32c

from pulsar_on_spark.model.names import NON_PERSISTENT, PERSISTENT, SYSTEM_NAMESPACE, SYSTEM_PREFIX

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
_DOMAINS: Final[dict[Mode, tuple[str, ...]]] = {
    "PERSISTENT": (PERSISTENT,),
    "NON_PERSISTENT": (NON_PERSISTENT,),
    "ALL": (PERSISTENT, NON_PERSISTENT),
}


class TopicList(NamedTuple):
    """The topics of a namespace.

    Attributes:
        topics: Sorted full names, each partition by itself; empty if the client has this list already.
        topics_hash: The hash of the whole list.
        changed: False if the client has this list already.
    """

    topics: list[str]
    topics_hash: str
    changed: bool


def list_topics(names: Iterable[str], namespace: str, mode: Mode, known_hash: str = "") -> TopicList:
    """Return the topics of a namespace, or only their hash if the client has the list already.

    Args:
        names: Normalised full names of topics and partitions of all namespaces.
        namespace: `tenant/namespace`.
        mode: The domains that the client requests: persistent topics, non-persistent ones, or both.
        known_hash: The hash of the client's list; "" if it has none.
    """
    topics = sorted(set(topics_in(names, namespace, mode)))
    topics_hash = hash_of(topics)
    changed = topics_hash != known_hash
    return TopicList(topics if changed else [], topics_hash, changed)


def topics_in(names: Iterable[str], namespace: str, mode: Mode) -> list[str]:
    """Return the full names of a namespace's topics, without system topics (arguments as `list_topics`)."""
    # Normalised names are compared as strings: parsing ten thousand of them would block other clients.
    prefixes = tuple(f"{domain}://{namespace}/" for domain in _DOMAINS[mode]) if namespace != SYSTEM_NAMESPACE else ()
    return [
        name for name in names if name.startswith(prefixes) and not name.startswith(SYSTEM_PREFIX, name.rindex("/") + 1)
    ]


def hash_of(topics: Iterable[str]) -> str:
    """Return Pulsar's hash of a list of topics (`TopicList.calculateHash`): CRC32C, lowest byte first, in hex."""
    in_java_order = sorted(topics, key=lambda name: name.encode("utf-16-be"))
    return crc32c(",".join(in_java_order).encode()).to_bytes(4, "little").hex()
