"""Dependencies of handlers: the broker's parts, and the topic or namespace of the path."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from fastapi import Depends, HTTPException, Path, Query, Request
from pydantic import Field
from starlette.convertors import Convertor, register_url_convertor

from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName, check_namespace, check_subscription_name
from pulsar_on_spark.security.principal import MAX_ROLE_BYTES, Principal
from pulsar_on_spark.topic.catalog import catalog

PRINCIPAL: Final = "pulsarpy.principal"
"""The key of a request's scope for its authenticated client."""
CERTIFICATE: Final = "pulsarpy.certificate"
"""The key of a request's scope for the client certificate that TLS has verified."""

TOPIC: Final = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
"""The path of a topic; its name is one segment, percent-encoded by clients."""
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"

Domain = Literal["persistent", "non-persistent"]


class NamesConvertor(Convertor[str]):
    """A path segment that must be one of some names; subclasses set `regex`."""

    def convert(self, value: str) -> str:
        """Return the segment unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Return the name unchanged."""
        return value


class _DomainConvertor(NamesConvertor):
    """The first segment of a topic's path, which distinguishes it from other paths of the same length."""

    regex = "persistent|non-persistent"


register_url_convertor("domain", _DomainConvertor())


# All dependencies are coroutines: FastAPI runs plain functions in threads, and the broker's parts are not thread-safe.


def _services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


async def _services(request: Request) -> Services:
    return _services_of(request)


async def _broker_health(request: Request) -> BrokerHealth:
    return cast(BrokerHealth, request.app.state.broker_health)


async def _principal(request: Request) -> Principal:
    return cast(Principal, request.scope[PRINCIPAL])


async def _web_url(request: Request) -> str:
    return _services_of(request).listeners.default.any_web_url


BrokerServices = Annotated[Services, Depends(_services)]
CurrentHealth = Annotated[BrokerHealth, Depends(_broker_health)]
Client = Annotated[Principal, Depends(_principal)]
"""The authenticated client of a request."""
WebUrl = Annotated[str, Depends(_web_url)]

Force = Annotated[bool, Query(description="Carry out the request even if the object is in use.")]
Roles = Annotated[list[Annotated[str, Field(max_length=MAX_ROLE_BYTES)]], Field(max_length=1000)]
Text = Annotated[str, Path(min_length=1, max_length=1024)]


async def _named_topic(domain: Domain, tenant: Text, namespace: Text, topic: Text) -> TopicName:
    return TopicName.parse_any(f"{domain}://{tenant}/{namespace}/{topic}")


NamedTopic = Annotated[TopicName, Depends(_named_topic)]
"""The topic that a path names, persistent or not."""


async def _stored_topic(name: NamedTopic) -> TopicName:
    """Return the topic that a path names; refuse non-persistent topics, as Pulsar does.

    Raises:
        HTTPException: 405, the topic is not persistent.
    """
    if not name.is_persistent:
        raise HTTPException(405, f"Topic {name} is not persistent: it has live clients only, and no stored data.")
    return name


StoredTopic = Annotated[TopicName, Depends(_stored_topic)]


async def _named_namespace(tenant: Text, namespace: Text) -> str:
    return check_namespace(f"{tenant}/{namespace}")


NamedNamespace = Annotated[str, Depends(_named_namespace)]


async def _subscription_name(subscription: Text) -> str:
    return check_subscription_name(subscription)


SubscriptionName = Annotated[str, Depends(_subscription_name)]


def parts(view: View, name: TopicName) -> list[TopicRecord]:
    """Return the records of a topic's partitions in order, or of the topic itself if it has none.

    Raises:
        TopicNotFoundError: there is no such topic.
    """
    record = catalog.require_topic(view, name)
    if record.partitions is None:
        return [record]
    partitions = (view.get(TopicRecord, name.partition(index).full) for index in range(record.partitions))
    return [partition for partition in partitions if partition is not None]


def own_parts(services: Services, view: View, name: TopicName) -> list[TopicRecord]:
    """Return the records of a topic's partitions, or of the topic, that no other broker serves (errors as `parts`)."""
    elsewhere = services.ownership.is_elsewhere
    return [part for part in parts(view, name) if not elsewhere(view, TopicName.parse(part.name))]


def single(view: View, name: TopicName, what: str) -> TopicRecord:
    """Return the record of a topic without partitions, or of one partition.

    Args:
        view: The current metadata.
        name: The topic or partition.
        what: The subject of the error's sentence, such as "Peeking".

    Raises:
        TopicNotFoundError: there is no such topic.
        HTTPException: 405, the topic is partitioned.
    """
    record = catalog.require_topic(view, name)
    if record.partitions is not None:
        raise HTTPException(
            405, f"{what} is for one partition, and {name} has {record.partitions} partitions: name one of them."
        )
    return record


def refused(status: int, description: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of an error response for the OpenAPI document, by status."""
    return {status: {"description": description, "content": {"application/json": {"schema": REASON}}}}


REASON: Final = {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]}
