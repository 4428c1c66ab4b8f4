"""The schema registry over HTTP; bodies are Pulsar's `PostSchemaPayload` and `GetSchemaResponse`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, Field

from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.requests import BrokerServices, Force, refused
from pulsar_on_spark.metadata.records import SchemaRecord, TopicRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema

router = APIRouter(prefix="/admin/v2/schemas/{tenant}/{namespace}/{local}", tags=["schemas"])

Version = Annotated[int, Path(ge=0, le=2**63 - 1)]
_MISSING: Final = refused(404, "There is no such topic, or it has no such schema.")
_MALFORMED: Final = refused(422, "The schema is malformed.")
_UNSUITED: Final = refused(409, "The schema is incompatible with the existing ones.")
_NO_LEDGER: Final = -1


class SchemaBody(BaseModel):
    """A schema in a request's body (Pulsar's `PostSchemaPayload`); `properties` are None for none."""

    type: str
    data: str = Field("", alias="schema")
    properties: dict[str, str] | None = None

    def topic_schema(self) -> TopicSchema:
        """Return the schema in the registry's form.

        Raises:
            HTTPException: 422, the schema is malformed.
        """
        schema = TopicSchema(self.type.upper(), self.data, self.properties or {})
        try:
            schema.check()
        except InvalidArgumentError as error:
            raise HTTPException(422, str(error)) from error
        return schema


@router.get("/schemas", responses=_MISSING)
async def all_versions(
    services: BrokerServices, tenant: str, namespace: str, local: str
) -> dict[str, list[dict[str, Any]]]:
    """List all versions of the topic's schema, by number."""
    name = await _topic(services, tenant, namespace, local)
    return {"getSchemaResponses": [_response(record) for record in await services.schemas.versions(name)]}


@router.get("/schema", responses=_MISSING)
async def latest(services: BrokerServices, tenant: str, namespace: str, local: str) -> dict[str, Any]:
    """Return the latest version of the topic's schema; 404 if there is none."""
    name = await _topic(services, tenant, namespace, local)
    return _response(await services.schemas.find_version(name, None))


@router.get("/schema/{version}", responses=_MISSING)
async def one(
    services: BrokerServices,
    tenant: str,
    namespace: str,
    local: str,
    version: Version,
) -> dict[str, Any]:
    """Return one version of the topic's schema; 404 if it does not exist."""
    name = await _topic(services, tenant, namespace, local)
    return _response(await services.schemas.find_version(name, version))


@router.post("/schema", responses=_UNSUITED | _MALFORMED)
async def add(
    services: BrokerServices, tenant: str, namespace: str, local: str, body: SchemaBody
) -> dict[str, dict[str, int]]:
    """Register a schema; 409 if it is incompatible. Creates a missing topic, as its first producer would."""
    name = await _topic(services, tenant, namespace, local)
    await services.topics.create_missing(name, services.topics.http_creations)
    added = await services.schemas.add(name, body.topic_schema())
    return {"version": {"version": added.version}}


@router.delete("/schema", responses=_MISSING)
async def delete(
    services: BrokerServices, tenant: str, namespace: str, local: str, force: Force = False
) -> dict[str, int]:
    """Delete the topic's schema. With `force`, delete it permanently: messages are then read without a schema."""
    name = await _topic(services, tenant, namespace, local)
    return {"version": await services.schemas.delete(name, force=force)}


@router.get("/metadata", responses=_MISSING)
async def metadata(services: BrokerServices, tenant: str, namespace: str, local: str) -> dict[str, Any]:
    """List the versions of the topic's schema, by number.

    Ledger ids are -1, because schemas are stored in the metadata and not in ledgers.
    """
    name = await _topic(services, tenant, namespace, local)
    numbers = [record.version for record in await services.schemas.versions(name)]
    if not numbers:
        raise HTTPException(404, f"Topic {name} has no schema: register one first.")
    index = [{"ledgerId": _NO_LEDGER, "entryId": _NO_LEDGER, "version": number} for number in numbers]
    return {"info": index[-1], "index": index}


@router.post("/compatibility", responses=_MISSING | _MALFORMED)
async def compatibility(
    services: BrokerServices, tenant: str, namespace: str, local: str, body: SchemaBody
) -> dict[str, bool | str]:
    """Check if a schema could be registered, without registering it."""
    name = await _topic(services, tenant, namespace, local)
    is_compatible = await services.schemas.may_follow(name, body.topic_schema())
    strategy = await services.schemas.strategy(name)
    return {"compatibility": is_compatible, "schemaCompatibilityStrategy": strategy.value}


@router.post("/version", responses=_MISSING | _MALFORMED)
async def version_of(
    services: BrokerServices, tenant: str, namespace: str, local: str, body: SchemaBody
) -> dict[str, int]:
    """Return the version number of a schema; 404 if it is not registered."""
    name = await _topic(services, tenant, namespace, local)
    return {"version": (await services.schemas.same(name, body.topic_schema())).version}


async def _topic(services: Services, tenant: str, namespace: str, local: str) -> TopicName:
    """Return the name of the persistent topic, or of the non-persistent one if only that is in use or has a schema."""
    stored, unstored = (
        TopicName.parse_any(f"{domain}://{tenant}/{namespace}/{local}") for domain in ("persistent", "non-persistent")
    )
    view = await services.views.view()
    is_unstored = view.get(TopicRecord, stored.full) is None and (
        unstored in (topic.name for topic in services.topics.non_persistent) or bool(registry.readable(view, unstored))
    )
    return unstored if is_unstored else stored


def _response(record: SchemaRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "type": record.type,
        "timestamp": 0 if record.created_at is None else int(record.created_at.timestamp() * 1000),
        "data": record.data,
        "properties": record.properties,
    }
