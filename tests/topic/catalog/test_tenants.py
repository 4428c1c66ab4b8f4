"""Tenants and namespaces in the metadata."""

from __future__ import annotations

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import BundlesRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceExistsError, NamespaceNotFoundError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog, tenants
from pulsar_on_spark.topic.catalog.bundles import MAX_HASH, new_record
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions


def test_tenants_and_their_namespaces(root: Root) -> None:
    tenants.create_tenant(root.store, "shop", ["admin"], ["standalone"])
    tenants.create_namespace(root.store, "shop/b")
    tenants.create_namespace(root.store, "shop/a")

    view = root.store.view()
    assert [tenant.tenant for tenant in tenants.tenants(view)] == ["public", "shop"]
    assert tenants.require_tenant(view, "shop").admin_roles == ("admin",)
    assert [each.namespace for each in tenants.namespaces(view, "shop")] == ["shop/a", "shop/b"]
    with pytest.raises(NamespaceExistsError, match="Tenant shop exists already"):
        tenants.create_tenant(root.store, "shop")
    with pytest.raises(NamespaceExistsError, match="shop/a exists already"):
        tenants.create_namespace(root.store, "shop/a")
    with pytest.raises(NamespaceNotFoundError, match="Tenant nobody does not exist"):
        tenants.create_namespace(root.store, "nobody/a")

    tenants.update_tenant(root.store, "shop", ["other"], ["standalone"])
    assert tenants.require_tenant(root.store.view(), "shop").admin_roles == ("other",)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä"])
def test_names_of_tenants(root: Root, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Tenant name"):
        tenants.create_tenant(root.store, name)


def test_administrators_have_roles_that_can_be_shown(root: Root) -> None:
    tenants.create_tenant(root.store, "shop")
    for change in (
        lambda role: tenants.create_tenant(root.store, "other", [role]),
        lambda role: tenants.update_tenant(root.store, "shop", [role], []),
    ):
        for role in ("a\nb", "admin\u202e", "r" * 1_025):
            with pytest.raises(InvalidArgumentError, match="Role"):
                change(role)


@pytest.mark.parametrize("name", ["", "public", "public/", "public/a/b", "public/a b"])
def test_names_of_namespaces(root: Root, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Namespace name"):
        tenants.create_namespace(root.store, name)


def test_a_tenant_or_namespace_with_contents_is_deleted_by_force_only(root: Root) -> None:
    root.create_topic("shop/a/t", 2)
    root.create_topic("shop/a-b/t")
    view = root.store.view()
    name = TopicName.parse("shop/a/t")
    for part in catalog.parts(view, catalog.require_topic(view, name)):
        subscriptions.create_subscriptions(root.store, "s", "Exclusive", {part: EARLIEST})

    with pytest.raises(NamespaceExistsError, match="has the topic persistent://shop/a/t"):
        tenants.delete_namespace(root.store, "shop/a")
    with pytest.raises(NamespaceExistsError, match="has the namespace shop/a"):
        tenants.delete_tenant(root.store, "shop")

    tenants.delete_namespace(root.store, "shop/a", force=True)
    assert [topic.name for topic in root.topics()] == ["persistent://shop/a-b/t"]
    assert root.subscriptions() == ()
    with pytest.raises(NamespaceNotFoundError):
        tenants.delete_namespace(root.store, "shop/a")

    tenants.delete_tenant(root.store, "shop", force=True)
    assert root.topics() == []
    assert [each.namespace for each in tenants.namespaces(root.store.view())] == ["public/default"]


def test_a_namespace_of_many_topics_goes_commit_by_commit(root: Root) -> None:
    wanted = {TopicName.parse(f"shop/a/t{number}"): None for number in range(250)}
    root.store.commit(lambda view: catalog.creation_of_missing(view, wanted)[0])
    before = root.store.view().version
    tenants.delete_namespace(root.store, "shop/a", force=True)
    view = root.store.view()
    assert view.version - before == 3
    assert catalog.topics(view) == []
    assert [each.namespace for each in tenants.namespaces(view)] == ["public/default"]


def test_properties(root: Root) -> None:
    root.create_topic("t", 2)
    name = TopicName.parse("t")
    tenants.set_topic_properties(root.store, name, {"team": "a", "cost": "1"})
    tenants.set_topic_properties(root.store, name.partition(1), {"cost": None})
    tenants.set_namespace_properties(root.store, "public/default", {"region": "eu"})
    view = root.store.view()
    assert catalog.require_topic(view, name).properties == {"team": "a"}
    assert tenants.require_namespace(view, "public/default").properties == {"region": "eu"}


def test_a_namespace_may_limit_its_topics(root: Root) -> None:
    set_namespace_policies(root, "public/default", {"max_topics_per_namespace": 3})
    root.create_topic("a", 2)
    with pytest.raises(InvalidArgumentError, match="2 of at most 3 topics"):
        root.create_topic("b", 2)
    root.create_topic("b")
    root.create_topic("elsewhere/x/c", 5)


def test_tenants_and_namespaces_are_as_many_as_a_broker_allows(root: Root) -> None:
    store = root.store
    there = len(tenants.tenants(store.view()))
    tenants.create_tenant(store, "one", most=there + 1)
    with pytest.raises(InvalidArgumentError, match=rf"There are {there + 1} of at most {there + 1} tenants"):
        tenants.create_tenant(store, "two", most=there + 1)
    tenants.create_namespace(store, "one/a", most=1)
    with pytest.raises(InvalidArgumentError, match="Tenant one has 1 of at most 1 namespaces"):
        tenants.create_namespace(store, "one/b", most=1)


def test_names_and_properties_are_bounded(root: Root) -> None:
    store = root.store
    for create, kind in ((tenants.create_tenant, "Tenant"), (tenants.create_namespace, "Namespace")):
        with pytest.raises(InvalidArgumentError, match=f"{kind} name .* has 10.. bytes and may have 1024"):
            create(store, ("public/" if kind == "Namespace" else "") + "n" * 1_025)
    with pytest.raises(InvalidArgumentError, match="Namespace public/new cannot have 65 properties"):
        tenants.create_namespace(store, "public/new", properties={str(number): "" for number in range(65)})
    tenants.set_namespace_properties(store, "public/default", {"k": "v" * 16_000})
    with pytest.raises(InvalidArgumentError, match="cannot have 2 properties of 17002 bytes"):
        tenants.set_namespace_properties(store, "public/default", {"l": "v" * 1_000})
    root.create_topic("t")
    with pytest.raises(InvalidArgumentError, match="t cannot have 1 properties"):
        tenants.set_topic_properties(store, TopicName.parse("t"), {"k": "v" * 16_384})


def test_a_new_namespace_does_not_inherit_bundles(root: Root) -> None:
    """A split that was decided before the deletion, and committed after it, by a version without its check."""
    stale = new_record("public/again", [0, 5, MAX_HASH])
    root.store.commit(lambda _: Change(puts=[stale], keys={keys.bundles("public/again"): None}))
    tenants.create_namespace(root.store, "public/again")
    assert root.store.view().get(BundlesRecord, "public/again") is None
    tenants.create_namespace(root.store, "public/given", boundaries=[0, 9, MAX_HASH])
    given = root.store.view().get(BundlesRecord, "public/given")
    assert given is not None
    assert given.boundaries == (0, 9, MAX_HASH)
    tenants.delete_namespace(root.store, "public/given")
    assert root.store.view().get(BundlesRecord, "public/given") is None
