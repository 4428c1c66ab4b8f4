"""Rules of authorization against a naive model that lists what each right allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.security.grants import Authorities, Grants
from pulsar_on_spark.security.operations import (
    ACTIONS,
    CLUSTER,
    NamespaceOperation,
    Operation,
    PolicyOperation,
    Resource,
    SuperUserOperation,
    TenantOperation,
    TopicOperation,
)
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.security.rules import decide

ROLES = ["a", "ab", "ba", "b", "a*", "*a", "*", "ä", "role with spaces", "A"]
"""Some are prefixes, suffixes or patterns of others."""
TOPICS = [
    TopicName.parse_any(name)
    for name in ("t", "t-partition-0", "t-partition-1", "u", "non-persistent://public/default/t")
]
SUBSCRIPTIONS = ["", "a", "ab-s", "s"]
OPERATIONS: list[Operation] = [each for kind in get_args(Operation) for each in kind]

roles = st.sampled_from(ROLES)
permissions = st.dictionaries(roles, st.lists(st.sampled_from(ACTIONS), max_size=3), max_size=3)
grants = st.builds(
    Grants,
    st.builds(Authorities, st.frozensets(roles, max_size=1), st.booleans()),
    st.lists(roles, max_size=1),
    permissions,
    st.dictionaries(st.sampled_from([each.full for each in TOPICS]), permissions, max_size=3),
    st.dictionaries(st.sampled_from(SUBSCRIPTIONS[1:]), st.lists(roles, max_size=2), max_size=2),
    is_prefixed=st.booleans(),
)
resources = st.one_of(
    st.just(CLUSTER),
    st.just(Resource("public")),
    st.just(Resource.of_namespace("public/default")),
    st.builds(Resource.of_topic, st.sampled_from(TOPICS), st.sampled_from(SUBSCRIPTIONS)),
)

CONSUMERS_MAY = {
    "CONSUME", "SUBSCRIBE", "UNSUBSCRIBE", "GET_SUBSCRIPTIONS", "SKIP", "EXPIRE_MESSAGES", "PEEK_MESSAGES",
    "RESET_CURSOR", "GET_BACKLOG_SIZE", "SET_REPLICATED_SUBSCRIPTION_STATUS", "GET_REPLICATED_SUBSCRIPTION_STATUS",
}  # fmt: skip


def covers(pattern: str, role: str, *, by_pattern: bool) -> bool:
    if pattern == role:
        return True
    return by_pattern and (
        (pattern[-1] == "*" and role[: len(pattern) - 1] == pattern[:-1])
        or (pattern[0] == "*" and role[len(role) - len(pattern) + 1 :] == pattern[1:] and len(role) >= len(pattern) - 1)
    )


def has(found: Grants, role: str, action: str, resource: Resource) -> bool:
    places = [found.namespace]
    if resource.topic is not None:
        name = resource.topic.full
        places.append(found.topics.get(name, {}))
        if "-partition-" in name:
            places.append(found.topics.get(name.rpartition("-partition-")[0], {}))
    return any(
        action in actions and covers(pattern, role, by_pattern=found.authorities.allows_wildcards)
        for place in places
        for pattern, actions in place.items()
    )


def one_may(found: Grants, role: str, operation: Operation, resource: Resource) -> bool:
    if role in found.authorities.super_users:
        return True
    if isinstance(operation, SuperUserOperation):
        return False
    if role in found.admins:
        return True
    produces, consumes = has(found, role, "produce", resource), has(found, role, "consume", resource)
    if resource.subscription:
        only = found.subscriptions.get(resource.subscription) or [role]
        consumes = consumes and role in only
        if found.is_prefixed:
            consumes = consumes and resource.subscription.startswith(role)
    if isinstance(operation, NamespaceOperation):
        if operation.name in ("GET_TOPICS", "GET_BUNDLE"):
            return produces or consumes
        return operation.name in ("CLEAR_BACKLOG", "UNSUBSCRIBE") and consumes
    if isinstance(operation, TopicOperation):
        if operation.name in ("LOOKUP", "GET_STATS", "GET_METADATA"):
            return produces or consumes
        return produces if operation.name == "PRODUCE" else operation.name in CONSUMERS_MAY and consumes
    return False


principals = st.builds(Principal, roles, st.none() | roles)


@settings(max_examples=250)
@given(grants, principals, st.sampled_from(OPERATIONS), resources)
def test_decisions_are_those_of_the_model(
    found: Grants, principal: Principal, operation: Operation, resource: Resource
) -> None:
    wanted = all(
        one_may(found, role, operation, resource)
        for role in {principal.role, principal.original_role or principal.role}
    )
    decision = decide(found, principal, operation, resource)
    assert decision.is_allowed is wanted
    if not wanted:
        assert decision.status == (403 if isinstance(operation, NamespaceOperation | PolicyOperation) else 401)
        assert decision.reason.endswith(".")


@settings(max_examples=250)
@given(grants, roles, roles, st.sampled_from(OPERATIONS), resources)
def test_a_revocation_allows_nothing(
    found: Grants, role: str, revoked: str, operation: Operation, resource: Resource
) -> None:
    """Without a role's permissions, no role may do more than with them."""
    left = Grants(
        found.authorities,
        [each for each in found.admins if each != revoked],
        {each: actions for each, actions in found.namespace.items() if each != revoked},
        {
            name: {each: actions for each, actions in of_topic.items() if each != revoked}
            for name, of_topic in found.topics.items()
        },
        found.subscriptions,
        is_prefixed=found.is_prefixed,
    )
    if decide(left, Principal(role), operation, resource).is_allowed:
        assert decide(found, Principal(role), operation, resource).is_allowed


EVERY: Grants = Grants(Authorities(frozenset({"root"})), ["admin"], {"role": ACTIONS})
SYSTEM = [
    "persistent://pulsar/system/x",
    "__change_events",
    "public/default/__transaction_buffer_snapshot",
    "__t-partition-0",
]


@pytest.mark.parametrize("name", SYSTEM)
@pytest.mark.parametrize("operation", list(TopicOperation) + list(PolicyOperation))
def test_system_topics_are_for_super_users(name: str, operation: Operation) -> None:
    resource = Resource.of_topic(TopicName.parse_any(name))
    assert decide(EVERY, Principal("root"), operation, resource).is_allowed
    for role in ("admin", "role"):
        assert not decide(EVERY, Principal(role), operation, resource).is_allowed


@pytest.mark.parametrize("operation", [NamespaceOperation.GET_TOPICS, PolicyOperation.WRITE])
def test_the_namespace_of_system_topics_is_for_super_users(operation: Operation) -> None:
    assert not decide(EVERY, Principal("admin"), operation, Resource.of_namespace("pulsar/system")).is_allowed


@pytest.mark.parametrize("operation", list(TopicOperation))
@pytest.mark.parametrize("partition", ["", "-partition-0"])
def test_every_role_looks_up_transaction_coordinators_and_does_no_more(
    operation: TopicOperation, partition: str
) -> None:
    name = TopicName.parse(f"pulsar/system/transaction_coordinator_assign{partition}")
    decision = decide(Grants(Authorities()), Principal("any"), operation, Resource.of_topic(name))
    assert decision.is_allowed is (operation is TopicOperation.LOOKUP)


def test_a_proxy_and_its_client_must_both_be_allowed() -> None:
    resource = Resource.of_topic(TopicName.parse("t"))
    may: Callable[[Principal], bool] = lambda who: decide(EVERY, who, TopicOperation.PRODUCE, resource).is_allowed  # noqa: E731
    assert may(Principal("role", "admin"))
    assert may(Principal("root", "role"))
    assert not may(Principal("role", "stranger"))
    assert not may(Principal("stranger", "role"))
    assert not may(Principal("root", "stranger"))


@pytest.mark.parametrize("operation", [*TenantOperation, SuperUserOperation.ADMINISTER])
def test_permissions_give_no_right_on_tenants_and_the_cluster(operation: Operation) -> None:
    assert not decide(EVERY, Principal("role"), operation, Resource("public")).is_allowed


@pytest.mark.parametrize("operation", OPERATIONS)
def test_only_the_actions_produce_and_consume_have_an_effect(operation: Operation) -> None:
    others = [action for action in ACTIONS if action not in ("produce", "consume")]
    found = Grants(Authorities(), namespace={"role": others}, topics={TOPICS[0].full: {"role": others}})
    for resource in (Resource.of_topic(TOPICS[0]), Resource.of_namespace("public/default")):
        assert not decide(found, Principal("role"), operation, resource).is_allowed


def test_a_star_is_a_letter_unless_wildcards_are_allowed() -> None:
    resource = Resource.of_topic(TopicName.parse("t"))
    for is_allowed in (False, True):
        found = Grants(Authorities(allows_wildcards=is_allowed), namespace={"team-*": ["produce"]})
        assert decide(found, Principal("team-a"), TopicOperation.PRODUCE, resource).is_allowed is is_allowed
        assert decide(found, Principal("team-*"), TopicOperation.PRODUCE, resource).is_allowed
        assert not decide(found, Principal("a-team-"), TopicOperation.PRODUCE, resource).is_allowed
