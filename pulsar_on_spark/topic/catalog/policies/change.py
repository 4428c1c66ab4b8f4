"""Setting policies of a namespace or a topic: one commit, checked by Pulsar's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.text import reason_of
from pulsar_on_spark.topic.catalog.policies.drivers import check_driver
from pulsar_on_spark.topic.catalog.policies.effective import given, policy_topic
from pulsar_on_spark.topic.catalog.policies.policies import FIELDS, BacklogQuota, Policies, RetentionPolicies
from pulsar_on_spark.topic.catalog.policies.quorums import check_quorum
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

_MIB: Final = 1 << 20
_NEGATIVE: Final = {
    "message_ttl": "Invalid value for message TTL",
    "subscription_expiration_time": "Invalid value for subscription expiration time",
}
"""Pulsar's error text for a negative number in these policies; for all others it is `<name> must be 0 or more`."""


def set_namespace_policies(root: RootHandle, namespace: str, changes: Mapping[str, Any]) -> None:
    """Set policies of a namespace.

    Args:
        root: The root.
        namespace: `tenant/namespace`.
        changes: By field of `Policies`, the new value (or its JSON, with Pulsar's names), or None to unset the policy.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: a policy is unknown, cannot be set on a namespace, or its value is not acceptable.
    """
    wanted = _checked(changes, f"namespace {namespace}", on_topic=False)
    _commit_namespace(root, namespace, lambda record: wanted)


def set_offload_fields(root: RootHandle, namespace: str, changes: Mapping[str, JsonValue]) -> None:
    """Set single fields of a namespace's offload policies (see `set_namespace_policies`).

    Args:
        root: The root.
        namespace: `tenant/namespace`.
        changes: By the field's name in Pulsar's JSON, the new value, or None to unset it.

    Raises:
        NamespaceNotFoundError: there is no such namespace.
        InvalidArgumentError: a value is not acceptable.
    """

    def wanted(record: NamespaceRecord) -> dict[str, JsonValue]:
        stored = record.policies.get("offload_policies")
        changed = {**(stored if isinstance(stored, dict) else {}), **changes}
        return _checked({"offload_policies": changed}, f"namespace {namespace}", on_topic=False)

    _commit_namespace(root, namespace, wanted)


def _commit_namespace(
    root: RootHandle, namespace: str, wanted: Callable[[NamespaceRecord], Mapping[str, JsonValue]]
) -> None:
    """Commit the changes of policies that `wanted` returns for the namespace's current record."""

    def decide(view: View) -> Change | None:
        record = view.get(NamespaceRecord, namespace)
        if record is None:
            raise NamespaceNotFoundError(
                f"Namespace {namespace} does not exist: create it with `pulsarpy namespaces create`."
            )
        stored = _changed(record.policies, wanted(record), f"namespace {namespace}")
        if stored == record.policies:
            return None
        _check_places(view, record.policies, stored, f"namespace {namespace}")
        return Change(puts=[record.model_copy(update={"policies": stored})], keys={keys.namespace(namespace): None})

    root.store.commit(decide)


def new_policies(view: View, namespace: str, given_there: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the policies for a new namespace's record, as JSON by field.

    `given_there` has the same form as `changes` of `set_namespace_policies`, and the errors are the same.
    """
    what = f"namespace {namespace}"
    stored = _changed({}, _checked(given_there, what, on_topic=False), what)
    _check_places(view, {}, stored, what)
    return stored


def set_topic_policies(root: RootHandle, name: TopicName, changes: Mapping[str, Any]) -> None:
    """Set policies of a topic; for a partition, those of its partitioned topic (see `set_namespace_policies`).

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: a policy is unknown, cannot be set on a topic, or its value is not acceptable.
    """
    wanted = _checked(changes, f"topic {name}", on_topic=True)

    def decide(view: View) -> Change | None:
        record = policy_topic(view, name)
        if record is None:
            raise TopicNotFoundError(f"Topic {name} does not exist: create it before you set its policies.")
        stored = _changed(record.policies, wanted, f"topic {name}")
        if stored == record.policies:
            return None
        _check_places(view, record.policies, stored, f"topic {name}")
        return Change(puts=[record.model_copy(update={"policies": stored})], keys={keys.topic(record.name): None})

    root.store.commit(decide)


def parsed(changes: Mapping[str, Any], what: str, *, on_topic: bool) -> dict[str, Any]:
    """Parse changes into values of `Policies`, by field; None for a policy to unset (see `set_namespace_policies`).

    `what` names the owner of the policies in errors; `on_topic` is True if it is a topic.
    """
    checked = _checked(changes, what, on_topic=on_topic)
    return {**checked, **given({name: value for name, value in checked.items() if value is not None})}


def _checked(changes: Mapping[str, Any], what: str, *, on_topic: bool) -> dict[str, JsonValue]:
    """Check changes, and return them as JSON by field, with None for a policy to unset (arguments as `parsed`)."""
    checked: dict[str, JsonValue] = {}
    for name, value in changes.items():
        field = FIELDS.get(name)
        if field is None:
            raise InvalidArgumentError(f"Policy {name!r} of {what} is not known: give one of {', '.join(FIELDS)}.")
        path = field.topic if on_topic else field.namespace
        if path is None:
            other = "namespaces" if on_topic else "topics"
            raise InvalidArgumentError(f"Policy {name!r} of {what} cannot be set: it is for {other} only.")
        # Clients send "UNDEFINED" for a strategy that is not set.
        checked[name] = None if value in (None, "UNDEFINED") else _json(name, value, what, path)
    return checked


def _json(name: str, value: Any, what: str, path: str) -> JsonValue:
    try:
        parsed = Policies.model_validate({name: value})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        as_pulsar = None
        if problem["type"] == "greater_than_equal" and len(problem["loc"]) == 1:
            as_pulsar = _NEGATIVE.get(name) or f"{path} must be 0 or more"
        if problem["loc"][-1] == "managedLedgerOffloadThresholdInSeconds":
            as_pulsar = "Invalid value for offloadThresholdInSecond"
        inside = ".".join(str(part) for part in problem["loc"][1:])
        reason = f"{inside}: {reason_of(problem['msg'])}" if inside else reason_of(problem["msg"])
        if problem["type"] == "model_type":
            fields = Policies.model_json_schema()["$defs"][problem["ctx"]["class_name"]]["properties"]
            reason = f"it is an object with {', '.join(fields)}"
        raise InvalidArgumentError(
            f"Policy {name!r} of {what} is not acceptable ({reason}): correct it.", as_pulsar=as_pulsar
        ) from error
    creation = parsed.auto_topic_creation
    if name == "auto_topic_creation" and creation.refusal is not None:
        raise InvalidArgumentError(f"{creation.refusal} ({what})", as_pulsar=creation.refusal)
    dumped: JsonValue = parsed.model_dump(mode="json", by_alias=True, include={name})[name]
    # An empty list unsets a policy, as in Pulsar, and so does an object that sets nothing.
    return (sorted(dumped, key=str) or None) if isinstance(dumped, list) else None if dumped == {} else dumped


def _changed(stored: Mapping[str, JsonValue], wanted: Mapping[str, JsonValue], what: str) -> dict[str, JsonValue]:
    """Return stored policies with a change applied; None as a value removes the policy.

    `what` names the owner of the policies in errors.
    """
    both = {**stored, **wanted}
    changed: dict[str, JsonValue] = {name: value for name, value in both.items() if value is not None}
    now = given(changed)
    retention = now.get("retention")
    if isinstance(retention, RetentionPolicies):
        _check_quota(retention, now.get("backlog_quota_size"), now.get("backlog_quota_age"), what)
    return changed


def _check_places(view: View, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], what: str) -> None:
    """Check that the root has the storage paths that changed policies need; unchanged policies are not checked."""
    check_quorum(view, before, after, what)
    check_driver(view, before, after, what)


def _check_quota(
    retention: RetentionPolicies, by_size: BacklogQuota | None, by_age: BacklogQuota | None, what: str
) -> None:
    """Refuse a backlog quota that is not less than the retention limit, as Pulsar's `checkBacklogQuota` does.

    A quota that is None is not set. `what` names the owner of the policies in errors.
    """
    for limit, kept, unit in (
        (-1 if by_size is None else by_size.limit_size, retention.retention_size_in_mb * _MIB, "bytes"),
        (-1 if by_age is None else by_age.limit_time, retention.retention_time_in_minutes * 60, "seconds"),
    ):
        if kept > 0 and limit >= kept:
            raise InvalidArgumentError(
                f"The backlog quota of {what} ({limit} {unit}) must be less than its retention ({kept} {unit}): raise "
                "the retention or lower the quota."
            )
