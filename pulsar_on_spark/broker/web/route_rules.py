"""The rule of each route: the operation that a client must be allowed to do before anything of a request is read.

`GUARDS` has one line for each method and path template; a route without a line is refused. HEAD counts as GET. Most
operations are Pulsar's for the same path. A route that acts on subscriptions which its path does not name checks each
of them itself, before it changes any. Paths that this broker does not support (`not_there.py`) have lines, too, so
that their answers tell a client nothing that it may not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.broker.web.requests import NAMESPACE, TOPIC
from pulsar_on_spark.model.names import SYSTEM_NAMESPACE, TopicName, check_namespace
from pulsar_on_spark.security.operations import (
    CLUSTER,
    NamespaceOperation,
    Operation,
    PolicyOperation,
    Resource,
    SuperUserOperation,
    TenantOperation,
    TopicOperation,
)

Rule = Callable[[Mapping[str, str]], tuple[Operation, Resource] | None]
"""A function from the variables of a path to the operation and its object; None if every client may send the request.
Raises `InvalidArgumentError` for an invalid name."""

OF_SUPER_USERS: Final = ("publishRate", "delayedDelivery")
"""Policies of namespaces that only super users may set, because they affect the broker's other tenants, too."""
_ON_TENANT_ITSELF: Final = (TenantOperation.GET_TENANT, TenantOperation.UPDATE_TENANT, TenantOperation.DELETE_TENANT)
"""Operations on a tenant itself, and not on its namespaces and topics."""


def shows_missing_tenant(operation: Operation, resource: Resource) -> bool:
    """Return True if the refusal of an operation may say that the tenant does not exist.

    As in Pulsar, refusals say so for objects in a tenant, but not for the tenant itself, for operations of super users,
    and for the system namespace, whose tenant always exists in Pulsar.
    """
    return bool(resource.tenant) and operation not in _ON_TENANT_ITSELF and resource.namespace != SYSTEM_NAMESPACE


def anyone(_: Mapping[str, str]) -> None:
    """Require nothing beyond authentication: return None for any path."""


def super_user(_: Mapping[str, str]) -> tuple[Operation, Resource]:
    """Require a super user, for any path."""
    return SuperUserOperation.ADMINISTER, CLUSTER


def on_tenant(operation: TenantOperation) -> Rule:
    """Return the rule that requires the right to an operation on the tenant of the path."""
    return lambda path: (operation, Resource(path["tenant"]))


def on_namespace(operation: NamespaceOperation | PolicyOperation | TenantOperation) -> Rule:
    """Return the rule that requires the right to an operation on the path's namespace.

    If the path has the name of a subscription, the right to subscriptions of this name is required.
    """

    def asks(path: Mapping[str, str]) -> tuple[Operation, Resource]:
        namespace = check_namespace(f"{path['tenant']}/{path['namespace']}")
        return operation, Resource.of_namespace(namespace, path.get("subscription", ""))

    return asks


def on_namespace_policy(operation: PolicyOperation) -> Rule:
    """Return the rule that requires the right to an operation on a policy of the path's namespace.

    To change a policy of `OF_SUPER_USERS`, the rule requires a super user.
    """
    of_tenant = on_namespace(operation)

    def asks(path: Mapping[str, str]) -> tuple[Operation, Resource] | None:
        is_for_super_users = operation is PolicyOperation.WRITE and path["policy"] in OF_SUPER_USERS
        return super_user(path) if is_for_super_users else of_tenant(path)

    return asks


def on_topic(operation: TopicOperation | NamespaceOperation | PolicyOperation) -> Rule:
    """Return the rule that requires the right to an operation on the path's topic, and on its subscription if any."""

    def asks(path: Mapping[str, str]) -> tuple[Operation, Resource]:
        # Paths of schemas do not say if the topic is persistent; as in Pulsar, rights on the persistent topic count.
        domain, local = path.get("domain", "persistent"), path.get("topic") or path["local"]
        topic = TopicName.parse_any(f"{domain}://{path['tenant']}/{path['namespace']}/{local}")
        return operation, Resource.of_topic(topic, path.get("subscription", ""))

    return asks


def _methods(path: str, rule: Rule) -> dict[tuple[str, str], Rule]:
    """Return the same rule for all methods of an unsupported path, by method and path."""
    return {(method, path): rule for method in ("GET", "POST", "PUT", "DELETE")}


def _branch(path: str, rule: Rule) -> dict[tuple[str, str], Rule]:
    """Return the same rule for all methods of an unsupported path and of all paths under it, by method and path."""
    return _methods(path, rule) | _methods(f"{path}/{{rest:path}}", rule)


_READ: Final = on_namespace(PolicyOperation.READ)
_WRITE: Final = on_namespace(PolicyOperation.WRITE)
_READ_TOPIC: Final = on_topic(PolicyOperation.READ)
_WRITE_TOPIC: Final = on_topic(PolicyOperation.WRITE)
_LIST: Final = on_namespace(NamespaceOperation.GET_TOPICS)
_CREATE: Final = on_topic(NamespaceOperation.CREATE_TOPIC)
_DELETE: Final = on_topic(NamespaceOperation.DELETE_TOPIC)
_CLEAR: Final = on_namespace(NamespaceOperation.CLEAR_BACKLOG)
_UNSUBSCRIBE: Final = on_namespace(NamespaceOperation.UNSUBSCRIBE)
_LOOK_UP: Final = on_topic(TopicOperation.LOOKUP)
_METADATA: Final = on_topic(TopicOperation.GET_METADATA)
_STATS: Final = on_topic(TopicOperation.GET_STATS)
_PEEK: Final = on_topic(TopicOperation.PEEK_MESSAGES)
_EXPIRE: Final = on_topic(TopicOperation.EXPIRE_MESSAGES)
_RESET: Final = on_topic(TopicOperation.RESET_CURSOR)
_SKIP: Final = on_topic(TopicOperation.SKIP)
_CONSUME: Final = on_topic(TopicOperation.CONSUME)
_TERMINATE: Final = on_topic(TopicOperation.TERMINATE)
_COMPACT: Final = on_topic(TopicOperation.COMPACT)
_OFFLOAD: Final = on_topic(TopicOperation.OFFLOAD)
_ADMINISTER: Final = on_topic(TopicOperation.ADMINISTER)
_GET_PERMISSION: Final = on_namespace(NamespaceOperation.GET_PERMISSION)
_GRANT: Final = on_namespace(NamespaceOperation.GRANT_PERMISSION)
_REVOKE: Final = on_namespace(NamespaceOperation.REVOKE_PERMISSION)

_TENANT: Final = "/admin/v2/tenants/{tenant}"
_TENANTS_NAMESPACES: Final = "/admin/v2/namespaces/{tenant}"
_TOPICS: Final = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
_SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"
_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{local}"
_CLUSTER: Final = "/admin/v2/clusters/{cluster}"
_ISOLATION: Final = f"{_CLUSTER}/namespaceIsolationPolicies"
_NAMESPACE_POLICY: Final = f"{NAMESPACE}/{{policy:namespace_policy}}"
_TOPIC_POLICY: Final = f"{TOPIC}/{{policy:topic_policy}}"

_OF_CLUSTER: Final[Mapping[tuple[str, str], Rule]] = {
    ("GET", PROBES[0]): anyone,
    ("GET", PROBES[1]): anyone,
    ("GET", "/metrics"): anyone,
    ("GET", "/openapi.json"): anyone,
    ("GET", "/admin/v2/brokers/version"): anyone,
    ("GET", "/admin/v2/brokers/health"): super_user,
    ("GET", "/admin/v2/clusters"): anyone,
    ("GET", _CLUSTER): super_user,
    ("PUT", _CLUSTER): super_user,
    ("POST", _CLUSTER): super_user,
    ("DELETE", _CLUSTER): super_user,
    ("GET", "/admin/v2/brokers"): super_user,
    ("GET", "/admin/v2/brokers/leaderBroker"): super_user,
    ("GET", "/admin/v2/brokers/configuration"): super_user,
    ("GET", "/admin/v2/brokers/configuration/values"): super_user,
    ("GET", "/admin/v2/brokers/configuration/runtime"): super_user,
    ("POST", "/admin/v2/brokers/configuration/{name}/{value:path}"): super_user,
    ("DELETE", "/admin/v2/brokers/configuration/{name}"): super_user,
    ("GET", "/admin/v2/brokers/internal-configuration"): super_user,
    ("GET", "/admin/v2/brokers/{cluster}"): super_user,
    ("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces"): super_user,
    ("GET", "/admin/v2/storage"): super_user,
    ("GET", "/admin/v2/tenants"): super_user,
    ("PUT", _TENANT): super_user,
    **_branch("/admin/v2/resourcegroups", super_user),
    **_branch("/admin/v2/resource-quotas", super_user),
    **_branch(f"{_CLUSTER}/failureDomains", super_user),
    ("GET", _ISOLATION): super_user,
    ("GET", f"{_ISOLATION}/brokers"): super_user,
    ("GET", f"{_ISOLATION}/brokers/{{broker}}"): super_user,
    ("GET", f"{_ISOLATION}/{{policy}}"): super_user,
    ("POST", f"{_ISOLATION}/{{policy}}"): super_user,
    ("DELETE", f"{_ISOLATION}/{{policy}}"): super_user,
    **_branch(f"{_CLUSTER}/peers", super_user),
    **_branch(f"{_CLUSTER}/migrate", super_user),
    **_branch("/admin/v2/bookies", super_user),
    ("GET", "/admin/v2/broker-stats/load-report"): super_user,
    **_branch("/admin/v2/broker-stats", super_user),
    **_branch("/admin/v2/worker", super_user),
    **_branch("/admin/v2/worker-stats", super_user),
    **_branch("/admin/v2/functions", super_user),
    **_branch("/admin/v2/non-persistent/bundles", super_user),
    **_branch("/admin/v3/functions", super_user),
    **_branch("/admin/v3/sources", super_user),
    **_branch("/admin/v3/sinks", super_user),
    **_branch("/admin/v3/packages", super_user),
    **_branch("/admin/v3/transactions", super_user),
}
_OF_NAMESPACES: Final[Mapping[tuple[str, str], Rule]] = {
    ("GET", _TENANT): on_tenant(TenantOperation.GET_TENANT),
    ("POST", _TENANT): on_tenant(TenantOperation.UPDATE_TENANT),
    ("DELETE", _TENANT): on_tenant(TenantOperation.DELETE_TENANT),
    ("GET", _TENANTS_NAMESPACES): on_tenant(TenantOperation.LIST_NAMESPACES),
    ("PUT", NAMESPACE): on_namespace(TenantOperation.CREATE_NAMESPACE),
    ("DELETE", NAMESPACE): on_namespace(TenantOperation.DELETE_NAMESPACE),
    ("GET", NAMESPACE): _READ,
    ("GET", f"{NAMESPACE}/topics"): _LIST,
    ("GET", f"{NAMESPACE}/bundles"): on_namespace(NamespaceOperation.GET_BUNDLE),
    ("PUT", f"{NAMESPACE}/unload"): super_user,
    ("PUT", f"{NAMESPACE}/{{bundle}}/unload"): super_user,
    ("PUT", f"{NAMESPACE}/{{bundle}}/split"): super_user,
    ("GET", f"{NAMESPACE}/{{bundle}}/topicHashPositions"): on_namespace(NamespaceOperation.GET_BUNDLE),
    ("GET", f"{NAMESPACE}/permissions"): _GET_PERMISSION,
    ("POST", f"{NAMESPACE}/permissions/{{role}}"): _GRANT,
    ("DELETE", f"{NAMESPACE}/permissions/{{role}}"): _REVOKE,
    ("GET", f"{NAMESPACE}/permissions/subscription"): _GET_PERMISSION,
    ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}"): _GRANT,
    ("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}"): _REVOKE,
    ("GET", f"{NAMESPACE}/subscriptionAuthMode"): _READ,
    ("POST", f"{NAMESPACE}/subscriptionAuthMode"): _WRITE,
    ("GET", _NAMESPACE_POLICY): on_namespace_policy(PolicyOperation.READ),
    ("PUT", _NAMESPACE_POLICY): on_namespace_policy(PolicyOperation.WRITE),
    ("POST", _NAMESPACE_POLICY): on_namespace_policy(PolicyOperation.WRITE),
    ("DELETE", _NAMESPACE_POLICY): on_namespace_policy(PolicyOperation.WRITE),
    ("GET", f"{NAMESPACE}/backlogQuotaMap"): _READ,
    ("POST", f"{NAMESPACE}/backlogQuota"): _WRITE,
    ("DELETE", f"{NAMESPACE}/backlogQuota"): _WRITE,
    ("GET", f"{NAMESPACE}/properties"): _READ,
    ("PUT", f"{NAMESPACE}/properties"): _WRITE,
    ("DELETE", f"{NAMESPACE}/properties"): _WRITE,
    ("GET", f"{NAMESPACE}/property/{{key}}"): _READ,
    ("PUT", f"{NAMESPACE}/property/{{key}}/{{value}}"): _WRITE,
    ("DELETE", f"{NAMESPACE}/property/{{key}}"): _WRITE,
    ("POST", f"{NAMESPACE}/clearBacklog"): _CLEAR,
    ("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}"): _CLEAR,
    ("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}"): _UNSUBSCRIBE,
    **_methods(f"{NAMESPACE}/{{bundle}}/clearBacklog", _CLEAR),
    **_methods(f"{NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}", _CLEAR),
    **_methods(f"{NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}", _UNSUBSCRIBE),
    **_methods(f"{NAMESPACE}/bundles/split", super_user),
    **_methods(f"{NAMESPACE}/persistence/bookieAffinity", super_user),
    **_methods(f"{NAMESPACE}/migration", super_user),
    **_methods(f"{NAMESPACE}/isolation", super_user),
    **_methods(f"{NAMESPACE}/scanOffloadedLedgers", super_user),
    **_methods(f"{NAMESPACE}/subscriptionPermission", _GRANT),
    **_methods(f"{NAMESPACE}/replication", _WRITE),
    **_methods(f"{NAMESPACE}/replicatorDispatchRate", _WRITE),
    **_methods(f"{NAMESPACE}/allowedClusters", _WRITE),
    ("GET", f"{NAMESPACE}/{{field:offload_field}}"): _READ,
    ("PUT", f"{NAMESPACE}/{{field:offload_field}}"): _WRITE,
    ("POST", f"{NAMESPACE}/{{field:offload_field}}"): _WRITE,
    ("DELETE", f"{NAMESPACE}/{{field:offload_field}}"): _WRITE,
    ("DELETE", f"{NAMESPACE}/removeOffloadPolicies"): _WRITE,
    **_branch(f"{NAMESPACE}/antiAffinity", _WRITE),
    **_branch(f"{NAMESPACE}/resourcegroup", _WRITE),
    **_methods(f"{NAMESPACE}/entryFilters", _WRITE),
    **_methods(f"{NAMESPACE}/dispatcherPauseOnAckStatePersistent", _WRITE),
    **_methods(f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", _WRITE),
}
_OF_TOPICS: Final[Mapping[tuple[str, str], Rule]] = {
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{local:path}"): _LOOK_UP,
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle"): _LOOK_UP,
    ("GET", _TOPICS): _LIST,
    ("GET", f"{_TOPICS}/partitioned"): _LIST,
    ("PUT", TOPIC): _CREATE,
    ("DELETE", TOPIC): _DELETE,
    # With `checkAllowAutoCreation` the request may create the topic. The right to look up suffices for that: only
    # clients that may produce or consume have it, and both create topics, too.
    ("GET", f"{TOPIC}/partitions"): _LOOK_UP,
    ("PUT", f"{TOPIC}/partitions"): _CREATE,
    ("POST", f"{TOPIC}/partitions"): _WRITE_TOPIC,
    ("DELETE", f"{TOPIC}/partitions"): _DELETE,
    ("POST", f"{TOPIC}/createMissedPartitions"): _ADMINISTER,
    ("GET", f"{TOPIC}/permissions"): _ADMINISTER,
    ("POST", f"{TOPIC}/permissions/{{role}}"): _ADMINISTER,
    ("DELETE", f"{TOPIC}/permissions/{{role}}"): _ADMINISTER,
    ("GET", _TOPIC_POLICY): _READ_TOPIC,
    ("PUT", _TOPIC_POLICY): _WRITE_TOPIC,
    ("POST", _TOPIC_POLICY): _WRITE_TOPIC,
    ("DELETE", _TOPIC_POLICY): _WRITE_TOPIC,
    ("GET", f"{TOPIC}/backlogQuotaMap"): _READ_TOPIC,
    ("POST", f"{TOPIC}/backlogQuota"): _WRITE_TOPIC,
    ("DELETE", f"{TOPIC}/backlogQuota"): _WRITE_TOPIC,
    ("GET", f"{TOPIC}/properties"): _METADATA,
    ("PUT", f"{TOPIC}/properties"): on_topic(TopicOperation.UPDATE_METADATA),
    ("DELETE", f"{TOPIC}/properties"): on_topic(TopicOperation.DELETE_METADATA),
    ("POST", f"{TOPIC}/terminate"): _TERMINATE,
    ("POST", f"{TOPIC}/terminate/partitions"): _TERMINATE,
    ("PUT", f"{TOPIC}/unload"): on_topic(TopicOperation.UNLOAD),
    ("DELETE", f"{TOPIC}/truncate"): _ADMINISTER,
    ("POST", f"{TOPIC}/trim"): on_topic(TopicOperation.TRIM_TOPIC),
    ("PUT", f"{TOPIC}/compaction"): _COMPACT,
    ("GET", f"{TOPIC}/compaction"): _COMPACT,
    ("GET", f"{TOPIC}/stats"): _STATS,
    ("GET", f"{TOPIC}/partitioned-stats"): _STATS,
    ("GET", f"{TOPIC}/internalStats"): _STATS,
    ("GET", f"{TOPIC}/partitioned-internalStats"): _STATS,
    ("GET", f"{TOPIC}/internal-info"): _METADATA,
    ("GET", f"{TOPIC}/backlog"): _STATS,
    ("PUT", f"{TOPIC}/backlogSize"): on_topic(TopicOperation.GET_BACKLOG_SIZE),
    ("GET", f"{TOPIC}/subscriptions"): on_topic(TopicOperation.GET_SUBSCRIPTIONS),
    ("PUT", _SUBSCRIPTION): on_topic(TopicOperation.SUBSCRIBE),
    ("DELETE", _SUBSCRIPTION): on_topic(TopicOperation.UNSUBSCRIBE),
    ("POST", f"{_SUBSCRIPTION}/skip_all"): _SKIP,
    ("POST", f"{_SUBSCRIPTION}/skip/{{messages}}"): _SKIP,
    ("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp_ms}}"): _RESET,
    ("POST", f"{_SUBSCRIPTION}/resetcursor"): _RESET,
    ("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}"): _EXPIRE,
    ("POST", f"{_SUBSCRIPTION}/expireMessages"): _EXPIRE,
    ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}"): _EXPIRE,
    ("GET", f"{_SUBSCRIPTION}/properties"): _CONSUME,
    ("PUT", f"{_SUBSCRIPTION}/properties"): _CONSUME,
    ("GET", f"{_SUBSCRIPTION}/position/{{position}}"): _PEEK,
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}"): _PEEK,
    ("GET", f"{TOPIC}/examinemessage"): _PEEK,
    ("GET", f"{TOPIC}/messageid/{{timestamp_ms}}"): _PEEK,
    ("GET", f"{TOPIC}/lastMessageId"): _PEEK,
    ("GET", f"{_SCHEMAS}/schemas"): _METADATA,
    ("GET", f"{_SCHEMAS}/schema"): _METADATA,
    ("GET", f"{_SCHEMAS}/schema/{{version}}"): _METADATA,
    ("POST", f"{_SCHEMAS}/schema"): on_topic(TopicOperation.PRODUCE),
    ("DELETE", f"{_SCHEMAS}/schema"): _ADMINISTER,
    ("GET", f"{_SCHEMAS}/metadata"): _METADATA,
    ("POST", f"{_SCHEMAS}/compatibility"): _ADMINISTER,
    ("POST", f"{_SCHEMAS}/version"): _METADATA,
    **_methods(f"{TOPIC}/replication", _WRITE_TOPIC),
    **_methods(f"{TOPIC}/replicatorDispatchRate", _WRITE_TOPIC),
    **_methods(f"{TOPIC}/shadowTopics", _WRITE_TOPIC),
    ("PUT", f"{TOPIC}/offload"): _OFFLOAD,
    ("GET", f"{TOPIC}/offload"): _OFFLOAD,
    **_methods(f"{TOPIC}/entryFilters", _WRITE_TOPIC),
    **_methods(f"{TOPIC}/dispatcherPauseOnAckStatePersistent", _WRITE_TOPIC),
    **_methods(f"{TOPIC}/getMessageIdByIndex", _PEEK),
    **_methods(f"{TOPIC}/{{subscription}}/dispatchRate", _WRITE_TOPIC),
    **_methods(
        f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", on_topic(TopicOperation.SET_REPLICATED_SUBSCRIPTION_STATUS)
    ),
    **_methods(f"{_SUBSCRIPTION}/analyzeBacklog", _PEEK),
}
GUARDS: Final[Mapping[tuple[str, str], Rule]] = {**_OF_CLUSTER, **_OF_NAMESPACES, **_OF_TOPICS}
"""The rule by method and path template."""
