"""Unsupported paths of Pulsar's admin API: each request is refused with 501 and the reason, never silently accepted.

The tables hold paths under a namespace or a topic, and whole branches of the API.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from pulsar_on_spark.broker.web.requests import NAMESPACE, TOPIC

router = APIRouter(include_in_schema=False)

_GEO: Final = "A root is one cluster: geo-replication is not supported."
_OFFLOAD: Final = "Offloaded segments are files of storage paths: see `pulsarpy storage check`."
_NOT_ENFORCED: Final = "The broker does not enforce this policy, so it cannot be set."
_NO_GROUPS: Final = "Brokers are not grouped: isolation policies name the brokers of a namespace."
_NO_QUOTAS: Final = "The load of bundles is measured, so it cannot be set."
_WHOLE: Final = "This operation is for whole namespaces: use the path without a bundle."
_FUNCTIONS: Final = "Functions, sources, sinks and packages are not supported: use Spark on the topic."
_TRANSACTIONS: Final = "Transactions are not supported: publish and acknowledge without them."

UNDER_NAMESPACE: Final = {
    "subscriptionPermission": "Pulsar's path is permissions/subscription.",
    "persistence/bookieAffinity": "There are no bookies: labels of storage paths decide where copies are placed.",
    "replication": _GEO,
    "replicatorDispatchRate": _GEO,
    "allowedClusters": _GEO,
    "migration": _GEO,
    "antiAffinity": _NO_GROUPS,
    "antiAffinity/{rest:path}": _NO_GROUPS,
    "resourcegroup": _NOT_ENFORCED,
    "resourcegroup/{rest:path}": _NOT_ENFORCED,
    "entryFilters": _NOT_ENFORCED,
    "dispatcherPauseOnAckStatePersistent": _NOT_ENFORCED,
    "bundles/split": "Bundles are split one by one: use the path with a bundle.",
    "{bundle}/clearBacklog": _WHOLE,
    "{bundle}/clearBacklog/{subscription}": _WHOLE,
    "{bundle}/unsubscribe/{subscription}": _WHOLE,
    "isolation": "Policies belong to the cluster: use clusters/{cluster}/namespaceIsolationPolicies.",
    "schemaAutoUpdateCompatibilityStrategy": "Pulsar 2.5 replaced it: set schemaCompatibilityStrategy.",
    "scanOffloadedLedgers": _OFFLOAD,
}
UNDER_TOPIC: Final = {
    "replication": _GEO,
    "replicatorDispatchRate": _GEO,
    "shadowTopics": _GEO,
    "entryFilters": _NOT_ENFORCED,
    "dispatcherPauseOnAckStatePersistent": _NOT_ENFORCED,
    "getMessageIdByIndex": "Entries have ids and times but no index.",
    "{subscription}/dispatchRate": "Rates are set for all subscriptions of a topic (subscriptionDispatchRate).",
    "subscription/{subscription}/replicatedSubscriptionStatus": _GEO,
    "subscription/{subscription}/analyzeBacklog": "The backlog in the topic's stats is exact already.",
}
BRANCHES: Final = {
    "/admin/v2/resourcegroups": _NOT_ENFORCED,
    "/admin/v2/resource-quotas": _NO_QUOTAS,
    "/admin/v2/clusters/{cluster}/failureDomains": _NO_GROUPS,
    "/admin/v2/clusters/{cluster}/peers": _GEO,
    "/admin/v2/clusters/{cluster}/migrate": _GEO,
    "/admin/v2/bookies": "There are no bookies: see `pulsarpy storage list` for storage paths.",
    "/admin/v2/broker-stats": "See /metrics and broker-stats/load-report.",
    "/admin/v2/worker": _FUNCTIONS,
    "/admin/v2/worker-stats": _FUNCTIONS,
    "/admin/v2/functions": _FUNCTIONS,
    "/admin/v2/non-persistent/bundles": "Topics are listed for whole namespaces: use the path without bundles.",
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

    router.add_route(path, not_there, methods=_METHODS)  # not validated, not described


for _segment, _reason in UNDER_NAMESPACE.items():
    _refuse(f"{NAMESPACE}/{_segment}", _reason)
for _segment, _reason in UNDER_TOPIC.items():
    _refuse(f"{TOPIC}/{_segment}", _reason)
for _branch, _reason in BRANCHES.items():
    _refuse(_branch, _reason)
    _refuse(f"{_branch}/{{rest:path}}", _reason)
