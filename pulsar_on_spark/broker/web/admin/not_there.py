"""What Pulsar's admin API has and this project does not do: each is answered with 501 and the reason, never accepted.

The table has whole paths under a namespace or a topic, and whole branches of the API.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from pulsar_on_spark.broker.web.requests import NAMESPACE, TOPIC

router = APIRouter(include_in_schema=False)

_GEO: Final = "A root is one cluster: geo-replication is not supported."
_OFFLOAD: Final = "Segments are on storage paths for good: tiered storage is not supported."
_PERMISSIONS: Final = "There is no authorization: everybody may do everything, and no permission would be heeded."
_NOT_ENFORCED: Final = "This policy is not enforced here, and so it is not taken."
_ENCRYPTION: Final = "Clients may encrypt, and nobody is made to: encryption is not enforced."
_ONE_BROKER: Final = "One broker serves all of a root: nothing is balanced or isolated."
_ONE_BUNDLE: Final = "A namespace has one bundle: ask without one."
_FUNCTIONS: Final = "There are no functions, sources, sinks or packages: use Spark on the topic."
_TRANSACTIONS: Final = "Transactions are not supported."

UNDER_NAMESPACE: Final = {
    "subscriptionPermission": _PERMISSIONS,
    "subscriptionAuthMode": _PERMISSIONS,
    "persistence/bookieAffinity": "There are no bookies: storage paths have labels, and copies are kept apart by them.",
    "replication": _GEO,
    "replicatorDispatchRate": _GEO,
    "allowedClusters": _GEO,
    "migration": _GEO,
    "offloadThreshold": _OFFLOAD,
    "offloadThresholdInSeconds": _OFFLOAD,
    "offloadDeletionLagMs": _OFFLOAD,
    "offloadPolicies": _OFFLOAD,
    "removeOffloadPolicies": _OFFLOAD,
    "encryptionRequired": _ENCRYPTION,
    "antiAffinity": _ONE_BROKER,
    "antiAffinity/{rest:path}": _ONE_BROKER,
    "resourcegroup": _NOT_ENFORCED,
    "resourcegroup/{rest:path}": _NOT_ENFORCED,
    "entryFilters": _NOT_ENFORCED,
    "dispatcherPauseOnAckStatePersistent": _NOT_ENFORCED,
    "bundles/split": _ONE_BROKER,
    "{bundle}/clearBacklog": _ONE_BUNDLE,
    "{bundle}/clearBacklog/{subscription}": _ONE_BUNDLE,
    "{bundle}/unsubscribe/{subscription}": _ONE_BUNDLE,
    "{bundle}/topHashPositions": _ONE_BUNDLE,
    "isolation": _ONE_BROKER,
    "schemaAutoUpdateCompatibilityStrategy": "It was replaced in Pulsar 2.5: set schemaCompatibilityStrategy.",
    "scanOffloadedLedgers": _OFFLOAD,
}
UNDER_TOPIC: Final = {
    "replication": _GEO,
    "replicatorDispatchRate": _GEO,
    "shadowTopics": _GEO,
    "offload": _OFFLOAD,
    "offloadPolicies": _OFFLOAD,
    "entryFilters": _NOT_ENFORCED,
    "dispatcherPauseOnAckStatePersistent": _NOT_ENFORCED,
    "getMessageIdByIndex": "Entries have ids and times, and no index.",
    "{subscription}/dispatchRate": "Rates are set for all subscriptions of a topic (subscriptionDispatchRate).",
    "subscription/{subscription}/replicatedSubscriptionStatus": _GEO,
    "subscription/{subscription}/analyzeBacklog": "The backlog in stats is exact as it is.",
}
BRANCHES: Final = {
    "/admin/v2/resourcegroups": _NOT_ENFORCED,
    "/admin/v2/resource-quotas": _ONE_BROKER,
    "/admin/v2/clusters/{cluster}/failureDomains": _ONE_BROKER,
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies": _ONE_BROKER,
    "/admin/v2/clusters/{cluster}/peers": _GEO,
    "/admin/v2/clusters/{cluster}/migrate": _GEO,
    "/admin/v2/bookies": "There are no bookies: see `pulsarpy storage list` for storage paths.",
    "/admin/v2/broker-stats": "See /metrics.",
    "/admin/v2/worker": _FUNCTIONS,
    "/admin/v2/worker-stats": _FUNCTIONS,
    "/admin/v2/functions": _FUNCTIONS,
    "/admin/v2/non-persistent/bundles": _ONE_BROKER,
    "/admin/v3/functions": _FUNCTIONS,
    "/admin/v3/sources": _FUNCTIONS,
    "/admin/v3/sinks": _FUNCTIONS,
    "/admin/v3/packages": _FUNCTIONS,
    "/admin/v3/transactions": _TRANSACTIONS,
}
_METHODS: Final = ["GET", "POST", "PUT", "DELETE"]


def _refuse(path: str, reason: str) -> None:
    async def not_there(request: Request) -> Response:
        raise HTTPException(501, f"{request.method} {request.url.path} is not supported: {reason}")

    router.add_route(path, not_there, methods=_METHODS)  # plain ones: nothing of them is described or looked at


for _segment, _reason in UNDER_NAMESPACE.items():
    _refuse(f"{NAMESPACE}/{_segment}", _reason)
for _segment, _reason in UNDER_TOPIC.items():
    _refuse(f"{TOPIC}/{_segment}", _reason)
for _branch, _reason in BRANCHES.items():
    _refuse(_branch, _reason)
    _refuse(f"{_branch}/{{rest:path}}", _reason)
