"""Permissions in the metadata: what is granted and revoked, limits, and their end with topics and namespaces."""

from __future__ import annotations

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PermissionsRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import permissions, tenants

NAMESPACE = "public/default"
TOPIC = TopicName.parse("t")


def found(root: Root, place: permissions.Place = NAMESPACE) -> dict[str, tuple[str, ...]]:
    return permissions.permissions_of(root.store.view(), place)


def test_a_grant_replaces_the_actions_of_its_role(root: Root) -> None:
    permissions.grant_permission(root.store, NAMESPACE, "a", ["consume", "produce"])
    permissions.grant_permission(root.store, NAMESPACE, "b", ["functions"])
    assert found(root) == {"a": ("produce", "consume"), "b": ("functions",)}
    permissions.grant_permission(root.store, NAMESPACE, "a", ["consume"])
    assert found(root)["a"] == ("consume",)
    permissions.revoke_permission(root.store, NAMESPACE, "a")
    permissions.revoke_permission(root.store, NAMESPACE, "a")
    assert found(root) == {"b": ("functions",)}


def test_a_topic_has_the_permissions_of_its_namespace_and_a_partition_those_of_its_topic(root: Root) -> None:
    permissions.grant_permission(root.store, NAMESPACE, "a", ["produce"])
    permissions.grant_permission(root.store, TOPIC, "a", ["consume"])
    permissions.grant_permission(root.store, TOPIC.partition(3), "b", ["consume"])
    assert found(root, TOPIC) == {"a": ("produce", "consume")}
    assert found(root, TOPIC.partition(3)) == {"a": ("produce", "consume"), "b": ("consume",)}
    assert found(root, TopicName.parse_any("non-persistent://public/default/t")) == {"a": ("produce",)}
    with pytest.raises(InvalidArgumentError, match=r"no permission on .*t-partition-0 itself"):
        permissions.revoke_permission(root.store, TOPIC.partition(0), "a")
    permissions.revoke_permission(root.store, TOPIC, "a")
    assert found(root, TOPIC) == {"a": ("produce",)}


def test_subscriptions_are_for_roles(root: Root) -> None:
    view = root.store.view
    permissions.grant_subscription_permission(root.store, NAMESPACE, "s", ["a", "b", "a"])
    assert permissions.subscription_permissions(view(), NAMESPACE) == {"s": ("a", "b")}
    with pytest.raises(InvalidArgumentError, match="Subscription 'other' of public/default is granted to no role"):
        permissions.revoke_subscription_permission(root.store, NAMESPACE, "other", "a")
    for role in ("c", "a", "b"):
        permissions.revoke_subscription_permission(root.store, NAMESPACE, "s", role)
    assert permissions.subscription_permissions(view(), NAMESPACE) == {}
    assert permissions.subscription_auth_mode(view(), NAMESPACE) == "None"
    permissions.set_subscription_auth_mode(root.store, NAMESPACE, "Prefix")
    assert permissions.subscription_auth_mode(view(), NAMESPACE) == "Prefix"
    with pytest.raises(InvalidArgumentError, match="give None or Prefix"):
        permissions.set_subscription_auth_mode(root.store, NAMESPACE, "prefix")


@pytest.mark.parametrize("role", ["", "r" * 1_025, "ä" * 513, "a\nb", "a\0", "\ud800", "a\u202e"])
def test_roles_that_are_not_accepted(root: Root, role: str) -> None:
    with pytest.raises(InvalidArgumentError):
        permissions.grant_permission(root.store, NAMESPACE, role, ["produce"])
    with pytest.raises(InvalidArgumentError):
        permissions.grant_subscription_permission(root.store, NAMESPACE, "s", [role])
    assert root.store.view().all(PermissionsRecord) == []


def test_what_else_is_not_accepted(root: Root) -> None:
    with pytest.raises(InvalidArgumentError, match="'write' does not exist: give some of produce, consume"):
        permissions.grant_permission(root.store, NAMESPACE, "a", ["produce", "write"])
    with pytest.raises(InvalidArgumentError, match="granted to no role"):
        permissions.grant_subscription_permission(root.store, NAMESPACE, "s", [])
    with pytest.raises(NamespaceNotFoundError, match="Tenant absent"):
        permissions.grant_permission(root.store, TopicName.parse("absent/n/t"), "a", ["produce"])
    with pytest.raises(NamespaceNotFoundError, match="Namespace public/absent"):
        permissions.permissions_of(root.store.view(), "public/absent")


def test_the_number_of_permissions_is_limited(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "MAX_GRANTS", 3)
    permissions.grant_permission(root.store, NAMESPACE, "a", ["produce"])
    permissions.grant_permission(root.store, TOPIC, "a", ["produce"])
    permissions.grant_subscription_permission(root.store, NAMESPACE, "s", ["a"])
    for place in (NAMESPACE, TOPIC):
        with pytest.raises(InvalidArgumentError, match=r"would have 4 grants to roles .* may have 3"):
            permissions.grant_permission(root.store, place, "b", ["produce"])
    permissions.grant_permission(root.store, NAMESPACE, "a", ["consume"])
    permissions.revoke_permission(root.store, TOPIC, "a")
    permissions.grant_permission(root.store, NAMESPACE, "b", ["produce"])


def test_permissions_end_with_their_topic(root: Root) -> None:
    other = TopicName.parse("t2")
    root.create_topic("t", 2)
    for place in (NAMESPACE, TOPIC, TOPIC.partition(0), other):
        permissions.grant_permission(root.store, place, "a", ["produce"])
    root.delete_topic("t")
    (record,) = root.store.view().all(PermissionsRecord)
    assert (record.namespace_auth, record.topic_auth) == ({"a": ("produce",)}, {other.full: {"a": ("produce",)}})
    permissions.revoke_all_of_topic(root.store, other)
    assert root.store.view().all(PermissionsRecord)[0].topic_auth == {}


def test_permissions_end_with_their_namespace(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is deleted in several commits, each of which takes the permissions on its topics along."""
    monkeypatch.setattr(tenants, "_DELETED_TOGETHER", 2)
    for name in "abcde":
        root.create_topic(f"shop/n/{name}")
        permissions.grant_permission(root.store, TopicName.parse(f"shop/n/{name}"), "a", ["produce"])
    permissions.grant_permission(root.store, "shop/n", "a", ["produce"])
    tenants.delete_tenant(root.store, "shop", force=True)
    assert root.store.view().all(PermissionsRecord) == []
    tenants.create_tenant(root.store, "shop")
    tenants.create_namespace(root.store, "shop/n")
    assert found(root, "shop/n") == {}


def test_no_grant_outlives_its_namespace(root: Root) -> None:
    """The namespace is deleted after a grant has seen it, and before the grant is committed."""
    tenants.create_tenant(root.store, "shop")
    tenants.create_namespace(root.store, "shop/n")
    seen = 0

    def grant(view: View) -> Change | None:
        nonlocal seen
        seen += 1
        tenants.require_namespace(view, "shop/n")
        if seen == 1:
            tenants.delete_namespace(Root.open(root.path).store, "shop/n")
        record = PermissionsRecord(namespace="shop/n", namespace_auth={"a": ("produce",)})
        return Change(puts=[record], keys={keys.permissions("shop/n"): None})

    with pytest.raises(NamespaceNotFoundError):
        root.store.commit(grant)
    assert seen == 2
