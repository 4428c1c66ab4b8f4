"""The audit: a line with a JSON object for each operation of a client that operators must be able to trace. Pure.

It records logins, logouts, refusals, and changes by REST, but never credentials, bodies or contents of messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pulsar_on_spark.security.principal import Principal

MAX_TEXT_LETTERS: Final = 1024
"""Maximum number of characters of each text in a line; longer texts are cut."""
MAX_REFUSALS: Final = 1000
"""Maximum number of kinds of refusals that are counted separately between two summaries; others count together."""


class Verdict(StrEnum):
    """The outcome of an operation."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An operation of a client.

    Attributes:
        address: The client's address, `host:port`.
        operation: The operation, such as LOGIN, PRODUCE or the method of a request.
        decision: The outcome of the operation.
        role: The client's role; "" if it is not known.
        original_role: The role of the client that a proxy forwards; "" without a proxy.
        method: The client's authentication method; "" if it is not known.
        resource: The object of the operation, such as a topic or the path of a request; "" for none.
        reason: The reason for a refusal; "" for none.
        status: The HTTP status; None for Pulsar's protocol.
        credential: The mark of the client's token (`mark_of`); "" for other credentials.
    """

    address: str
    operation: str
    decision: Verdict
    role: str = ""
    original_role: str = ""
    method: str = ""
    resource: str = ""
    reason: str = ""
    status: int | None = None
    credential: str = ""

    def by(self, client: Principal | None) -> AuditRecord:
        """Return this record with the client's roles, method and token; unchanged for None, an unknown client."""
        if client is None:
            return self
        return replace(
            self,
            role=client.role,
            original_role=client.original_role or "",
            method=client.method,
            credential=self.credential or client.credential,
        )

    def line(self, time_s: float, times: int = 1) -> str:
        """Return the record as JSON without a line break; empty texts are left out.

        Args:
            time_s: The time of the operation, in seconds since 1970.
            times: The number of equal operations that the line reports.
        """
        fields: dict[str, object] = {"time": round(time_s, 3)}
        for name in self.__slots__:
            value = getattr(self, name)
            if value not in ("", None):
                fields[name] = value[:MAX_TEXT_LETTERS] if isinstance(value, str) else value
        if times > 1:
            fields["times"] = times
        return json.dumps(fields)


_OTHERS: Final = AuditRecord("", "", Verdict.REFUSED, reason="refusals of other kinds, too many to count separately")


def host_of(address: str) -> str:
    """Return the host of an address `host:port`."""
    return address.rpartition(":")[0]


class Refusals:
    """The refusals since the last summary. The first refusal of each kind is written at once, repetitions are counted.

    Two refusals are of one kind if they differ only in the client's port and its credentials.
    """

    def __init__(self) -> None:
        self._again: dict[AuditRecord, int] = {}

    def is_first(self, record: AuditRecord) -> bool:
        """Count a refusal; return True if it is the first of its kind since the last summary, to be written now."""
        kind = replace(record, address=host_of(record.address), credential="")
        known = kind in self._again
        if not known and len(self._again) >= MAX_REFUSALS:
            kind = _OTHERS
            self._again[kind] = self._again.get(kind, 0) + 1
            return False
        self._again[kind] = self._again.get(kind, -1) + 1
        return not known

    def summary(self) -> Iterator[tuple[AuditRecord, int]]:
        """Yield a record of each repeated kind with its number of repetitions, and restart the counts."""
        counted, self._again = self._again, {}
        yield from ((kind, times) for kind, times in counted.items() if times)
