"""Topic and subscription names, parsed as by Pulsar's `TopicName` (`tests/golden/topic_names.json`).

There is one deliberate difference: control characters are refused, because they break listings, offsets and file names.
A full name is always printed in its canonical form, `persistent://t/n/x`. Non-persistent topics exist only in a
broker's memory, so only the broker accepts their names.

New names and properties are bounded (`check_new_name`, `check_new_properties`), because every process holds the
metadata in memory. Existing names and properties are read whatever their length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_on_spark.model.errors import InvalidArgumentError

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "pulsar/system"
PARTITION_SUFFIX = "-partition-"

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"

MAX_NAME_BYTES = 1_024
"""Limit of a new name's bytes in UTF-8: a full topic name, or the name of a subscription, producer or consumer."""
MAX_PROPERTIES = 64
MAX_PROPERTIES_BYTES = 16 << 10
"""Limit of all keys and values of an object's properties together, in UTF-8."""

SYSTEM_PREFIX = "__"
"""Prefix of the names of system topics: `__change_events`, `__transaction_buffer_snapshot`, ..."""
_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
_NOT_BLANK_SPACES = "\u00a0\u2007\u202f"
"""Spaces that Java's `Character.isWhitespace` does not count as white space."""
_UNREADABLE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, surrogates, and separators of lines and paragraphs."""
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks of the writing direction, which can make a name look like another one."""
_MAX_PARTITION_INDEX = 2**31 - 1
_RESERVED_SUBSCRIPTIONS = ("pulsar.dedup", "__compaction")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic's full name, split into its parts. Names from users must be checked by `parse`.

    Attributes:
        tenant: The tenant, such as `public`.
        namespace: Tenant and namespace, such as `public/default`.
        local: The part after the namespace, which is nearly free text.
        partition_index: N if the name ends in `-partition-N`, else -1.
        domain: `persistent` or `non-persistent`.
    """

    tenant: str
    namespace: str
    local: str
    partition_index: int = field(compare=False, default=-1)
    domain: str = PERSISTENT

    @classmethod
    def parse(cls, name: str) -> TopicName:
        """Parse the topic name `x`, `tenant/namespace/x` or `persistent://tenant/namespace/x`.

        Raises:
            InvalidArgumentError: Pulsar refuses the name, or it contains control characters or names a non-persistent
                topic.
        """
        parsed = cls.parse_any(name)
        if not parsed.is_persistent:
            raise _invalid(name, "a non-persistent topic exists only in a broker's memory, not in a root")
        return parsed

    @classmethod
    def parse_any(cls, name: str) -> TopicName:
        """Parse a name as `parse` does, and also accept `non-persistent://tenant/namespace/x`.

        Raises:
            InvalidArgumentError: Pulsar refuses the name, or it contains control characters.
        """
        domain, tenant, namespace, local = _split(name)
        for part in (tenant, namespace):
            if not _ENTITY.fullmatch(part):
                raise _invalid(name, f"{part!r} may hold only the letters a-z and A-Z, digits and _ - = : .")
        if all(letter.isspace() and letter not in _NOT_BLANK_SPACES for letter in local):
            raise _invalid(name, "the part after the namespace is blank")
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in local):
            raise _invalid(name, "control characters are not allowed")
        partition_index = _partition_index(local)
        if partition_index >= 0 and local.startswith(PARTITION_SUFFIX) and local.count(PARTITION_SUFFIX) == 1:
            raise _invalid(name, f"there is no name before {PARTITION_SUFFIX!r}")
        return cls(tenant, f"{tenant}/{namespace}", local, partition_index, domain)

    @property
    def is_persistent(self) -> bool:
        """True if the topic's messages are stored, False if they exist only in a broker's memory."""
        return self.domain == PERSISTENT

    @property
    def is_system(self) -> bool:
        """True for system topics, which regular expressions do not match and clients do not administer."""
        return self.local.startswith(SYSTEM_PREFIX) or self.namespace == SYSTEM_NAMESPACE

    @property
    def full(self) -> str:
        """The full name, `persistent://tenant/namespace/local`, which is the key of stored data."""
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def partitioned_base(self) -> TopicName:
        """The partitioned topic to which this partition belongs; the topic itself if it is not a partition."""
        if self.partition_index < 0:
            return self
        base = self.local[: self.local.rindex(PARTITION_SUFFIX)]
        return TopicName(self.tenant, self.namespace, base, _partition_index(base), self.domain)

    def partition(self, index: int) -> TopicName:
        """Return partition `index` of this topic.

        Raises:
            InvalidArgumentError: the index is negative or does not fit Pulsar's 32 bits.
        """
        if not 0 <= index <= _MAX_PARTITION_INDEX:
            raise InvalidArgumentError(f"Topic {self.full!r} cannot have a partition {index}: count partitions from 0.")
        return TopicName(self.tenant, self.namespace, f"{self.local}{PARTITION_SUFFIX}{index}", index, self.domain)

    def __str__(self) -> str:
        return self.full


def is_showable(text: str) -> bool:
    """Return True if a text cannot be mistaken for another text in lists and logs.

    >>> is_showable("a b"), is_showable("a" + chr(0)), is_showable("admin" + chr(0x202E))
    (True, False, False)
    """
    return all(unicodedata.category(letter) not in _UNREADABLE and letter not in _BIDIRECTIONAL for letter in text)


def check_new_name(kind: str, name: str) -> str:
    """Return the name of a new object unchanged if it is acceptable.

    Args:
        kind: The kind of name, such as "Subscription name".
        name: The name, well-formed for its kind.

    Raises:
        InvalidArgumentError: the name is too long, or contains characters that lists and logs cannot show.
    """
    size_bytes = len(name.encode(errors="surrogatepass"))
    if size_bytes > MAX_NAME_BYTES:
        raise InvalidArgumentError(
            f"{kind} {name[:40]!r}... has {size_bytes} bytes and may have {MAX_NAME_BYTES}: choose a shorter one."
        )
    if not is_showable(name):
        raise InvalidArgumentError(
            f"{kind} {name!r} holds control characters, line separators or bidirectional marks: choose another."
        )
    return name


def check_new_properties(of: str, properties: Mapping[str, str]) -> None:
    """Check that an object's properties are within `MAX_PROPERTIES` and `MAX_PROPERTIES_BYTES`.

    Args:
        of: The owner of the properties, such as "Subscription 'reports'".
        properties: All properties of the object, new and existing ones.

    Raises:
        InvalidArgumentError: there are too many, or they are too long.
    """
    size_bytes = sum(len(text.encode(errors="surrogatepass")) for pair in properties.items() for text in pair)
    if len(properties) > MAX_PROPERTIES or size_bytes > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(
            f"{of} cannot have {len(properties)} properties of {size_bytes} bytes: give at most {MAX_PROPERTIES} "
            f"of {MAX_PROPERTIES_BYTES} bytes together."
        )


def check_tenant(name: str) -> str:
    """Return a tenant's name if it is valid.

    Raises:
        InvalidArgumentError: the name is not valid.
    """
    if not _ENTITY.fullmatch(name):
        raise InvalidArgumentError(
            f"Tenant name {name!r} is not valid: use the letters a-z and A-Z, digits and _ - = : . only."
        )
    return name


def check_namespace(name: str) -> str:
    """Return a namespace's name if it is a valid `tenant/namespace`.

    Raises:
        InvalidArgumentError: the name is not valid.
    """
    parts = name.split("/")
    if len(parts) != 2 or not all(_ENTITY.fullmatch(part) for part in parts):
        raise InvalidArgumentError(
            f"Namespace name {name!r} is not valid: give <tenant>/<namespace>, of the letters a-z and A-Z, digits and "
            "_ - = : . only."
        )
    return name


def check_subscription_name(name: str) -> str:
    """Return a subscription's name if users may choose it.

    Raises:
        InvalidArgumentError: the name is empty, contains control characters, or is reserved by Pulsar
            (`pulsar.repl...`, `pulsar.dedup`, `__compaction`).
    """
    if not name:
        raise InvalidArgumentError("A subscription name is empty: give it a name such as 'reports'.")
    if name in _RESERVED_SUBSCRIPTIONS or name.startswith("pulsar.repl"):
        raise InvalidArgumentError(f"Subscription name {name!r} is reserved by Pulsar: choose another.")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise InvalidArgumentError(f"Subscription name {name!r} holds control characters: choose another.")
    return name


def _split(name: str) -> tuple[str, str, str, str]:
    """Return domain, tenant, namespace and local name of a topic name."""
    domain, separator, rest = name.partition("://")
    if not separator:
        parts = name.split("/")
        if len(parts) == 1:
            return PERSISTENT, DEFAULT_TENANT, DEFAULT_NAMESPACE, name
        if len(parts) != 3:
            raise _invalid(name, "a short name is <topic> or <tenant>/<namespace>/<topic>")
        return PERSISTENT, parts[0], parts[1], parts[2]
    if domain.lower() not in (PERSISTENT, NON_PERSISTENT):
        raise _invalid(name, f"a full name begins with {PERSISTENT}:// or {NON_PERSISTENT}://")
    parts = rest.split("/")
    if len(parts) != 3:
        raise _invalid(name, f"a full name is {domain.lower()}://<tenant>/<namespace>/<topic>")
    return domain.lower(), parts[0], parts[1], parts[2]


def _partition_index(local: str) -> int:
    """Return N of a local name `...-partition-N` if it is canonical decimal, else -1 (Pulsar's `getPartitionIndex`)."""
    _, suffix, digits = local.rpartition(PARTITION_SUFFIX)
    if not suffix or not digits.isdecimal() or len(digits) > len(str(_MAX_PARTITION_INDEX)):
        return -1
    index = int(digits)
    return index if len(str(index)) == len(digits) and index <= _MAX_PARTITION_INDEX else -1


def _invalid(name: str, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Topic name {name!r} is not valid: {reason}.")
