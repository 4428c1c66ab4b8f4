"""Bundles of namespaces: list, unload and split them, and return the hashes of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, HTTPException, Query, Request
from pydantic import Field, JsonValue

from pulsar_on_spark.broker.web.by_owner import url_at
from pulsar_on_spark.broker.web.requests import NAMESPACE, BrokerServices, NamedNamespace, Text, refused
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import tenants
from pulsar_on_spark.topic.catalog.brokers import serving_brokers
from pulsar_on_spark.topic.catalog.bundles import (
    Bundle,
    NamespaceBundles,
    check_boundaries,
    decide_split,
    effective_owner,
    equal_boundaries,
    topic_hash,
)

router = APIRouter(tags=["bundles"])

_MISSING: Final = refused(404, "There is no such namespace.") | refused(412, "There is no such bundle.")
_BUNDLE: Final = f"{NAMESPACE}/{{bundle}}"
_DIVIDE: Final = ("range_equally_divide", "topic_count_equally_divide", "specified_positions_divide")
_Positions = Annotated[list[Annotated[int, Field(ge=0, le=2**32 - 1)]], Field(max_length=1000)]


def bundles_json(bundles: NamespaceBundles) -> dict[str, Any]:
    """Return a namespace's bundles as Pulsar's `BundlesData`: their number, and their boundaries as hex texts."""
    return {
        "boundaries": [f"0x{boundary:08x}" for boundary in bundles.boundaries],
        "numBundles": len(bundles.owners),
    }


def given_boundaries(body: JsonValue) -> tuple[int, ...] | None:
    """Return the bundle boundaries in a new namespace's `BundlesData`, hashes from 0 on; None for the default.

    Raises:
        InvalidArgumentError: the boundaries or their number are invalid.
    """
    if not isinstance(body, dict) or not (body.get("numBundles") or body.get("boundaries")):
        return None
    boundaries, count = body.get("boundaries"), body.get("numBundles")
    if not boundaries:
        return equal_boundaries(count if isinstance(count, int) else 0)
    if not isinstance(boundaries, list) or not all(isinstance(each, str) for each in boundaries):
        raise InvalidArgumentError("The boundaries of bundles must be a list of texts such as 0x40000000.")
    try:
        return check_boundaries([int(str(each), 16) for each in boundaries])
    except ValueError as error:
        raise InvalidArgumentError(f"The boundaries of bundles must be hexadecimal numbers: {error}.") from error


async def _named_bundle(services: BrokerServices, namespace: NamedNamespace, bundle: Text) -> Bundle:
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    return services.ownership.bundles(view, namespace).require_bundle(bundle)


NamedBundle = Annotated[Bundle, Depends(_named_bundle)]


async def _own_bundle(services: BrokerServices, request: Request, bundle: NamedBundle) -> Bundle:
    """Require that this broker owns the bundle, and return the bundle; a bundle without an owner is assigned first.

    Raises:
        HTTPException: 307, another broker owns it.
    """
    owner = await services.ownership.find_bundle_owner(bundle)
    if owner.broker != services.ownership.broker.broker:
        raise HTTPException(
            307, f"Bundle {bundle} belongs to {owner.broker}.", headers={"Location": url_at(request.scope, owner)}
        )
    return bundle


@router.get(f"{NAMESPACE}/bundles", responses=_MISSING)
async def bundles(services: BrokerServices, namespace: NamedNamespace) -> dict[str, Any]:
    """Return the boundaries and the number of the namespace's bundles."""
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    return bundles_json(services.ownership.bundles(view, namespace))


@router.put(f"{NAMESPACE}/unload", status_code=204, responses=refused(404, "There is no such namespace."))
async def unload_namespace(services: BrokerServices, namespace: NamedNamespace) -> None:
    """Unload all topics of a namespace; their clients look them up again."""
    view = await services.views.view()
    tenants.require_namespace(view, namespace)
    await services.handover.unload(services.ownership.owned(view, namespace))


@router.put(f"{_BUNDLE}/unload", status_code=204, responses=_MISSING | refused(409, "The destination is not running."))
async def unload_bundle(
    services: BrokerServices,
    request: Request,
    bundle: NamedBundle,
    destination: Annotated[str, Query(alias="destinationBroker", max_length=1024)] = "",
) -> None:
    """Unload all topics of a bundle. The destination becomes its owner; by default, the next lookup assigns one."""
    view = await services.views.view()
    to = None
    if destination:
        to = next((each.incarnation for each in serving_brokers(view) if each.broker == destination), None)
        if to is None:
            raise HTTPException(
                409, f"Broker {destination} is not running, or is about to end: name another destination."
            )
        candidates = services.ownership.candidates(view, bundle.namespace)
        if to not in [each.incarnation for each in candidates]:
            raise InvalidArgumentError(
                f"Isolation policies do not let broker {destination} serve namespace {bundle.namespace}: name another "
                "destination."
            )
    owner = effective_owner(view, services.ownership.bundles(view, bundle.namespace).owner_of(bundle))
    if owner is None:
        return
    await _own_bundle(services, request, bundle)
    await services.handover.unload([bundle], to)


@router.put(f"{_BUNDLE}/split", status_code=204, responses=_MISSING)
async def split_bundle(
    services: BrokerServices,
    request: Request,
    bundle: NamedBundle,
    algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = _DIVIDE[0],
    unload: bool = False,
    body: Annotated[_Positions | None, Body()] = None,
) -> None:
    """Split a bundle in two, or at the positions in the body; its owner keeps the parts, or unloads them on request."""
    if algorithm not in _DIVIDE:
        raise HTTPException(412, f"Split algorithm {algorithm!r} is not supported: choose one of {', '.join(_DIVIDE)}.")
    if unload:
        await _own_bundle(services, request, bundle)
    view = await services.views.view()
    positions = _positions(view, bundle, algorithm, body or ())
    count = services.ownership.default_count
    await asyncio.to_thread(services.root.store.commit, lambda now: decide_split(now, bundle, positions, count))
    if unload:
        view = await services.views.view()
        owned = services.ownership.owned(view, bundle.namespace)
        await services.handover.unload([each for each in owned if bundle.covers(each)])


@router.get(f"{_BUNDLE}/topicHashPositions", responses=_MISSING)
async def hash_positions(
    services: BrokerServices,
    bundle: NamedBundle,
    topics: Annotated[list[str] | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Return the hash of each topic of a bundle; with `topics` in the query, only of these topics."""
    names = _topics(await services.views.view(), bundle)
    wanted = {name.full: topic_hash(name) for name in names if not topics or name.full in topics}
    return {"namespace": bundle.namespace, "bundle": bundle.hash_range, "topicHashPositions": wanted}


def _positions(view: View, bundle: Bundle, algorithm: str, given: Sequence[int]) -> Sequence[int]:
    if algorithm == "specified_positions_divide":
        return given
    if algorithm == "topic_count_equally_divide":
        hashes = sorted(topic_hash(name) for name in _topics(view, bundle))
        if len(hashes) < 2:
            return ()
        middle = len(hashes) // 2
        return (hashes[middle - 1] + (hashes[middle] - hashes[middle - 1]) // 2,)
    return (bundle.lower + (bundle.upper - bundle.lower) // 2,)


def _topics(view: View, bundle: Bundle) -> list[TopicName]:
    """Return the names of the persistent topics and partitions in a bundle, without partitioned topics themselves."""
    prefix = f"persistent://{bundle.namespace}/"
    stored = (record for record in view.all(TopicRecord) if record.partitions is None)
    names = (TopicName.parse(record.name) for record in stored if record.name.startswith(prefix))
    return [name for name in names if name in bundle]
