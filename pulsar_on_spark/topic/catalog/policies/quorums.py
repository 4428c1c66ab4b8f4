"""Quorums from policies, and the check that a root has enough storage paths for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import JsonValue

from pulsar_on_spark.metadata.records import NamespaceRecord, PathRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.health import APART
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import PersistencePolicies

MAX_QUORUMS: Final = 4
"""Maximum number of different quorums in a root's policies: a broker has a journal and a process for each."""
_FIELD: Final = "persistence"


def quorum_of(view: View, name: TopicName, otherwise: Quorum) -> Quorum:
    """Return the quorum that the policies in force for a topic set; `otherwise` if they set none."""
    persistence = effective_policies(view, name).persistence
    return otherwise if persistence is None else persistence.quorum


def quorum_for_all(view: View, otherwise: Quorum) -> Quorum:
    """Return a quorum that is enough for a file with entries of any topics: each number is the largest one of all.

    Args:
        view: The metadata, whose policies set quorums.
        otherwise: The quorum of topics without a policy.
    """
    return strictest([otherwise, *_asked(view)])


def strictest(quorums: Iterable[Quorum]) -> Quorum:
    """Combine one or more quorums into a quorum that satisfies each of them."""
    listed = list(quorums)
    return Quorum(
        max(quorum.ensemble for quorum in listed),
        max(quorum.write for quorum in listed),
        max(quorum.ack for quorum in listed),
    )


def check_quorum(view: View, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], what: str) -> None:
    """Refuse a new quorum that needs more storage paths than the root has, or exceeds the limit of `MAX_QUORUMS`.

    Args:
        view: The metadata.
        before: The policies before the change as JSON, by field.
        after: The policies after it.
        what: The owner of the policies, for the error.

    Raises:
        InvalidArgumentError: there are too few storage paths, or too many different quorums already.
    """
    if _FIELD not in after or after[_FIELD] == before.get(_FIELD):
        return
    wanted = PersistencePolicies.model_validate(after[_FIELD]).quorum
    paths = sum(path.state in ("writable", "read-only") and path.role not in APART for path in view.all(PathRecord))
    if wanted.ensemble > paths:
        raise InvalidArgumentError(
            f"Policy {_FIELD!r} of {what} needs {wanted.ensemble} storage paths (quorum {wanted}), and the root has "
            f"{paths}: add some with `pulsarpy storage add`, or ask for fewer copies."
        )
    requested = {(quorum.write, quorum.ack) for quorum in _asked(view)}
    if (wanted.write, wanted.ack) not in requested and len(requested) >= MAX_QUORUMS:
        raise InvalidArgumentError(
            f"Policy {_FIELD!r} of {what} is one quorum too many: other policies of this root set {MAX_QUORUMS} "
            "different ones, the limit; use one of these."
        )


def _asked(view: View) -> list[Quorum]:
    """Return the quorums that the policies of namespaces and topics set."""
    records: list[NamespaceRecord | TopicRecord] = [*view.all(NamespaceRecord), *view.all(TopicRecord)]
    policies = (record.policies[_FIELD] for record in records if _FIELD in record.policies)
    return [PersistencePolicies.model_validate(policy).quorum for policy in policies]
