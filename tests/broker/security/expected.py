"""The operations that each role may do, written by hand from Pulsar's rules, and not from the code.

`ROUTES` lists methods and paths under the headings of the rules; `COMMANDS` the same for Pulsar's protocol.
"""

from __future__ import annotations

from typing import Final

ROLES: Final = (
    "unauthenticated",
    "anonymous",
    "stranger",
    "producer",
    "consumer",
    "topic-producer",
    "topic-consumer",
    "subscriber",
    "admin",
    "other-admin",
    "root",
    "proxy for root",
    "proxy for stranger",
    "weak-proxy for root",
)
"""`producer` and `consumer` may produce to and consume all topics of the namespace, `topic-...` single topics only. The
subscription `s` is granted to `consumer` and `subscriber` alone, and `kept` to `subscriber`, which has no other
permission. `admin` administers the tenant, `other-admin` another one. `root` is a super user, and so is `proxy`;
`weak-proxy` has no right."""

_SUPER: Final = {"root", "proxy for root"}
_ADMIN: Final = {*_SUPER, "admin"}
MAY: Final = {
    "open": (set(ROLES), 200),
    "known": (set(ROLES) - {"unauthenticated"}, 401),
    "super user": (_SUPER, 401),
    "tenant": (_ADMIN, 401),
    "namespaces of a tenant": (_ADMIN, 401),
    "namespace or policy": (_ADMIN, 403),
    "namespace, produce or consume": ({*_ADMIN, "producer", "consumer"}, 403),
    "namespace, consume": ({*_ADMIN, "consumer"}, 403),
    "topic": (_ADMIN, 401),
    "topic, produce or consume": ({*_ADMIN, "producer", "consumer", "topic-producer", "topic-consumer"}, 401),
    "topic, produce": ({*_ADMIN, "producer", "topic-producer"}, 401),
    "topic, consume": ({*_ADMIN, "consumer", "topic-consumer"}, 401),
    "subscription s": ({*_ADMIN, "consumer"}, 401),
    "subscription free": ({*_ADMIN, "consumer", "topic-consumer"}, 401),
    "subscription kept": (_ADMIN, 401),
    "namespace, subscription kept": (_ADMIN, 403),
}
"""The roles that may, and the HTTP status of those that may not."""
UNKNOWN_TENANT: Final = {rule: 401 if rule in ("super user", "tenant") else 404 for rule in MAY}
"""The HTTP status of those that may not if the tenant does not exist: as a Pulsar 4.2.4 answers every role."""

_TOPIC: Final = "/admin/v2/persistent/public/default/TOPIC"
_NAMESPACE: Final = "/admin/v2/namespaces/public/default"
_SCHEMAS: Final = "/admin/v2/schemas/public/default/TOPIC"
_ALL: Final = "GET POST PUT DELETE"

ROUTES: Final[dict[str, str]] = {
    "open": """
        GET /status.html
        GET /admin/v2/brokers/ready
        GET /metrics
    """,
    "known": """
        GET /openapi.json
        GET /admin/v2/brokers/version
        GET /admin/v2/clusters
    """,
    "super user": f"""
        {_ALL} /admin/v2/clusters/c
        GET /admin/v2/brokers
        GET /admin/v2/brokers/leaderBroker
        GET /admin/v2/brokers/health
        GET /admin/v2/brokers/configuration
        GET /admin/v2/brokers/configuration/values
        GET /admin/v2/brokers/configuration/runtime
        GET /admin/v2/brokers/internal-configuration
        POST /admin/v2/brokers/configuration/logLevel/DEBUG
        DELETE /admin/v2/brokers/configuration/logLevel
        GET /admin/v2/brokers/standalone
        GET /admin/v2/brokers/standalone/localhost:8080/ownedNamespaces
        GET /admin/v2/storage
        GET /admin/v2/tenants
        PUT /admin/v2/tenants/public
        PUT {_NAMESPACE}/unload
        PUT {_NAMESPACE}/0x0_0x1/unload
        PUT {_NAMESPACE}/0x0_0x1/split
        PUT POST DELETE {_NAMESPACE}/publishRate
        PUT POST DELETE {_NAMESPACE}/delayedDelivery
        {_ALL} {_NAMESPACE}/bundles/split
        {_ALL} {_NAMESPACE}/persistence/bookieAffinity
        {_ALL} {_NAMESPACE}/migration
        {_ALL} {_NAMESPACE}/isolation
        {_ALL} {_NAMESPACE}/scanOffloadedLedgers
        {_ALL} /admin/v2/resourcegroups
        {_ALL} /admin/v2/resourcegroups/x
        {_ALL} /admin/v2/resource-quotas
        {_ALL} /admin/v2/resource-quotas/x
        {_ALL} /admin/v2/clusters/c/failureDomains
        {_ALL} /admin/v2/clusters/c/failureDomains/x
        GET /admin/v2/clusters/c/namespaceIsolationPolicies
        GET /admin/v2/clusters/c/namespaceIsolationPolicies/brokers
        GET /admin/v2/clusters/c/namespaceIsolationPolicies/brokers/x
        GET POST DELETE /admin/v2/clusters/c/namespaceIsolationPolicies/x
        {_ALL} /admin/v2/clusters/c/peers
        {_ALL} /admin/v2/clusters/c/peers/x
        {_ALL} /admin/v2/clusters/c/migrate
        {_ALL} /admin/v2/clusters/c/migrate/x
        {_ALL} /admin/v2/bookies
        {_ALL} /admin/v2/bookies/x
        GET /admin/v2/broker-stats/load-report
        {_ALL} /admin/v2/broker-stats
        {_ALL} /admin/v2/broker-stats/x
        {_ALL} /admin/v2/worker
        {_ALL} /admin/v2/worker/x
        {_ALL} /admin/v2/worker-stats
        {_ALL} /admin/v2/worker-stats/x
        {_ALL} /admin/v2/functions
        {_ALL} /admin/v2/functions/x
        {_ALL} /admin/v2/non-persistent/bundles
        {_ALL} /admin/v2/non-persistent/bundles/x/y/z
        {_ALL} /admin/v3/functions
        {_ALL} /admin/v3/functions/x
        {_ALL} /admin/v3/sources
        {_ALL} /admin/v3/sources/x
        {_ALL} /admin/v3/sinks
        {_ALL} /admin/v3/sinks/x
        {_ALL} /admin/v3/packages
        {_ALL} /admin/v3/packages/x
        {_ALL} /admin/v3/transactions
        {_ALL} /admin/v3/transactions/x
    """,
    "tenant": """
        GET POST DELETE /admin/v2/tenants/public
    """,
    "namespaces of a tenant": f"""
        GET /admin/v2/namespaces/public
        PUT DELETE {_NAMESPACE}
    """,
    "namespace or policy": f"""
        GET {_NAMESPACE}
        GET {_NAMESPACE}/permissions
        POST DELETE {_NAMESPACE}/permissions/role
        GET {_NAMESPACE}/permissions/subscription
        POST {_NAMESPACE}/permissions/subscription/s
        DELETE {_NAMESPACE}/permissions/s/role
        GET POST {_NAMESPACE}/subscriptionAuthMode
        {_ALL} {_NAMESPACE}/subscriptionPermission
        {_ALL} {_NAMESPACE}/retention
        GET {_NAMESPACE}/publishRate
        GET {_NAMESPACE}/delayedDelivery
        GET {_NAMESPACE}/backlogQuotaMap
        POST DELETE {_NAMESPACE}/backlogQuota
        GET PUT DELETE {_NAMESPACE}/properties
        GET DELETE {_NAMESPACE}/property/k
        PUT {_NAMESPACE}/property/k/v
        {_ALL} {_NAMESPACE}/replication
        {_ALL} {_NAMESPACE}/replicatorDispatchRate
        {_ALL} {_NAMESPACE}/allowedClusters
        {_ALL} {_NAMESPACE}/offloadThreshold
        {_ALL} {_NAMESPACE}/offloadThresholdInSeconds
        {_ALL} {_NAMESPACE}/offloadDeletionLagMs
        {_ALL} {_NAMESPACE}/offloadPolicies
        DELETE {_NAMESPACE}/removeOffloadPolicies
        {_ALL} {_NAMESPACE}/encryptionRequired
        {_ALL} {_NAMESPACE}/antiAffinity
        {_ALL} {_NAMESPACE}/antiAffinity/x
        {_ALL} {_NAMESPACE}/resourcegroup
        {_ALL} {_NAMESPACE}/resourcegroup/x
        {_ALL} {_NAMESPACE}/entryFilters
        {_ALL} {_NAMESPACE}/dispatcherPauseOnAckStatePersistent
        {_ALL} {_NAMESPACE}/schemaAutoUpdateCompatibilityStrategy
        PUT DELETE {_TOPIC}
        PUT POST DELETE {_TOPIC}/partitions
        {_ALL} {_TOPIC}/retention
        GET {_TOPIC}/backlogQuotaMap
        POST DELETE {_TOPIC}/backlogQuota
        {_ALL} {_TOPIC}/replication
        {_ALL} {_TOPIC}/replicatorDispatchRate
        {_ALL} {_TOPIC}/shadowTopics
        {_ALL} {_TOPIC}/offloadPolicies
        {_ALL} {_TOPIC}/entryFilters
        {_ALL} {_TOPIC}/dispatcherPauseOnAckStatePersistent
        {_ALL} {_TOPIC}/s/dispatchRate
    """,
    "namespace, produce or consume": f"""
        GET {_NAMESPACE}/topics
        GET /admin/v2/persistent/public/default
        GET /admin/v2/persistent/public/default/partitioned
        GET {_NAMESPACE}/bundles
        GET {_NAMESPACE}/0x0_0x1/topicHashPositions
    """,
    "namespace, consume": f"""
        POST {_NAMESPACE}/clearBacklog
        POST {_NAMESPACE}/clearBacklog/s
        POST {_NAMESPACE}/unsubscribe/s
        {_ALL} {_NAMESPACE}/0x0_0x1/clearBacklog
        {_ALL} {_NAMESPACE}/0x0_0x1/clearBacklog/s
        {_ALL} {_NAMESPACE}/0x0_0x1/unsubscribe/s
    """,
    "namespace, subscription kept": f"""
        POST {_NAMESPACE}/clearBacklog/kept
        POST {_NAMESPACE}/unsubscribe/kept
        {_ALL} {_NAMESPACE}/0x0_0x1/clearBacklog/kept
        {_ALL} {_NAMESPACE}/0x0_0x1/unsubscribe/kept
    """,
    "topic": f"""
        POST {_TOPIC}/createMissedPartitions
        GET {_TOPIC}/permissions
        POST DELETE {_TOPIC}/permissions/role
        PUT DELETE {_TOPIC}/properties
        POST {_TOPIC}/terminate
        POST {_TOPIC}/terminate/partitions
        PUT {_TOPIC}/unload
        DELETE {_TOPIC}/truncate
        POST {_TOPIC}/trim
        GET PUT {_TOPIC}/compaction
        GET PUT {_TOPIC}/offload
        DELETE {_SCHEMAS}/schema
        POST {_SCHEMAS}/compatibility
    """,
    "topic, produce or consume": f"""
        GET /lookup/v2/topic/persistent/public/default/TOPIC
        GET /lookup/v2/topic/persistent/public/default/TOPIC/bundle
        GET {_TOPIC}/partitions
        GET {_TOPIC}/properties
        GET {_TOPIC}/stats
        GET {_TOPIC}/partitioned-stats
        GET {_TOPIC}/internalStats
        GET {_TOPIC}/partitioned-internalStats
        GET {_TOPIC}/internal-info
        GET {_TOPIC}/backlog
        GET {_SCHEMAS}/schemas
        GET {_SCHEMAS}/schema
        GET {_SCHEMAS}/schema/0
        GET {_SCHEMAS}/metadata
        POST {_SCHEMAS}/version
    """,
    "topic, produce": f"""
        POST {_SCHEMAS}/schema
    """,
    "topic, consume": f"""
        GET {_TOPIC}/subscriptions
        PUT {_TOPIC}/backlogSize
        GET {_TOPIC}/ledger/1/entry/1
        GET {_TOPIC}/examinemessage
        GET {_TOPIC}/messageid/1
        GET {_TOPIC}/lastMessageId
        POST {_TOPIC}/all_subscription/expireMessages/1
        {_ALL} {_TOPIC}/getMessageIdByIndex
    """,
} | {
    f"subscription {name}": f"""
        PUT DELETE {_TOPIC}/subscription/{name}
        POST {_TOPIC}/subscription/{name}/skip_all
        POST {_TOPIC}/subscription/{name}/skip/1
        POST {_TOPIC}/subscription/{name}/resetcursor
        POST {_TOPIC}/subscription/{name}/resetcursor/1
        POST {_TOPIC}/subscription/{name}/expireMessages
        POST {_TOPIC}/subscription/{name}/expireMessages/1
        GET PUT {_TOPIC}/subscription/{name}/properties
        GET {_TOPIC}/subscription/{name}/position/1
        {_ALL} {_TOPIC}/subscription/{name}/replicatedSubscriptionStatus
        {_ALL} {_TOPIC}/subscription/{name}/analyzeBacklog
    """
    for name in ("s", "free", "kept")
}

COMMANDS: Final[dict[str, str]] = {
    "known": """
        CONNECT AUTH_RESPONSE PING PONG SEND FLOW ACK REDELIVER_UNACKNOWLEDGED_MESSAGES CLOSE_PRODUCER CLOSE_CONSUMER
        SEEK UNSUBSCRIBE GET_LAST_MESSAGE_ID CONSUMER_STATS WATCH_TOPIC_LIST_CLOSE
        TC_CLIENT_CONNECT_REQUEST NEW_TXN ADD_PARTITION_TO_TXN ADD_SUBSCRIPTION_TO_TXN END_TXN
    """,
    "namespace, produce or consume": "GET_TOPICS_OF_NAMESPACE WATCH_TOPIC_LIST",
    "topic, produce or consume": "LOOKUP PARTITIONED_METADATA GET_SCHEMA",
    "topic, produce": "PRODUCER GET_OR_CREATE_SCHEMA",
    "subscription s": "SUBSCRIBE",
}
"""Commands on a producer, consumer or watcher are known to every role: they reach those of the connection alone."""
