"""Lookups of clients with an `http://` URL: a topic's broker, its number of partitions, a namespace's topics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse

from pulsar_on_spark.broker.topics.topic_lists import Mode, list_topics
from pulsar_on_spark.broker.web.requests import (
    NAMESPACE,
    TOPIC,
    BrokerServices,
    Domain,
    NamedNamespace,
    NamedTopic,
    Text,
    refused,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.tenants import require_namespace

router = APIRouter(tags=["lookup"])


@router.get(
    "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle",
    response_class=PlainTextResponse,
    responses=refused(404, "There is no such namespace."),
)
async def bundle(
    services: BrokerServices, domain: Domain, tenant: Text, namespace: Text, topic: Text
) -> PlainTextResponse:
    """Return the hash range of the topic's bundle, as plain text."""
    name = TopicName.parse_any(f"{domain}://{tenant}/{namespace}/{topic}")
    view = await services.views.view()
    require_namespace(view, name.namespace)
    return PlainTextResponse(services.ownership.bundles(view, name.namespace).bundle_of(name).hash_range)


@router.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{local:path}")
async def lookup(
    services: BrokerServices,
    domain: str,
    tenant: str,
    namespace: str,
    local: str,
    listener: Annotated[str, Query(alias="listenerName")] = "",
    listener_header: Annotated[str, Header(alias="X-Pulsar-ListenerName")] = "",
) -> dict[str, str]:
    """Return the URLs of the topic's broker, without creating the topic; C++ clients need all keys, even empty ones."""
    name = TopicName.parse_any(f"{domain}://{tenant}/{namespace}/{local}")
    urls = await services.listener_of_topic(name, listener or listener_header)
    return {
        "brokerUrl": urls.service_url,
        "brokerUrlTls": urls.service_url_tls,
        "brokerUrlSsl": urls.service_url_tls,
        "nativeUrl": urls.service_url,
        "httpUrl": urls.web_url,
        "httpUrlTls": urls.web_url_tls,
    }


@router.get(f"{NAMESPACE}/topics", responses=refused(404, "There is no such namespace."))
async def topics(services: BrokerServices, namespace: NamedNamespace, mode: Mode = "PERSISTENT") -> list[str]:
    """List the full names of a namespace's topics, each partition by itself."""
    require_namespace(await services.views.view(), namespace)
    return list_topics(await services.topics.names(), namespace, mode).topics


@router.get(f"{TOPIC}/partitions", responses=refused(404, "There is no such topic."))
async def partitions(
    services: BrokerServices,
    name: NamedTopic,
    create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
) -> dict[str, int]:
    """Return the number of partitions, 0 for none; with `checkAllowAutoCreation`, may create a partitioned topic."""
    rate = services.topics.http_creations if create else None
    return {"partitions": await services.topics.partitions(name, create=rate)}
