"""Locations of roots and storage paths: a folder of this host, or a prefix of an object store.

A folder is a `Path`, a prefix an `ObjectPlace`. Both are picklable and hold no credentials; each process resolves its
own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.root_path import local_path
from pulsar_on_spark.storage.leases.contract import LeaseStore, lease_name
from pulsar_on_spark.storage.leases.files import LeaseFiles, sweep_lease_files
from pulsar_on_spark.storage.leases.objects import LeaseObjects, sweep_lease_objects
from pulsar_on_spark.storage.objects.contract import ObjectStore
from pulsar_on_spark.storage.objects.local import LocalObjects

LEASES: Final = "leases"
BROKERS: Final = "brokers"
LOADS: Final = "broker-loads"
"""The group of the leases that hold brokers' loads; no subscription's group has this name."""
_SCHEMES: Final[Mapping[str, str]] = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
_URL: Final = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<bucket>[A-Za-z0-9.@_-]+)(?P<prefix>(?:/[A-Za-z0-9._=!()-]+)*)/*")
_MAX_STORES: Final = 32
"""Maximum number of object stores that a process keeps open."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix of an object store.

    Attributes:
        url: The URL, without a slash at its end.
        profile: The name of the profile with the store's options; "" for the profile that matches the URL, if any.
    """

    url: str
    profile: str = ""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, below: str) -> ObjectPlace:
        return ObjectPlace(f"{self.url}/{below}", self.profile)


RootPlace: TypeAlias = Path | ObjectPlace


def parse_place(given: str | Path | ObjectPlace, profile: str = "") -> RootPlace:
    """Return the location of a root or storage path, given as a path, a `file:` URI or a URL of an object store.

    Args:
        given: The path or URL; `s3a:` means `s3:`.
        profile: The name of the profile for a URL.

    Raises:
        InvalidArgumentError: the scheme is unknown, or the URL has characters that not all stores can keep.
    """
    if isinstance(given, ObjectPlace):
        return given
    text = str(given)
    if "://" not in text or text.startswith("file:"):
        return local_path(given)
    parts = _URL.fullmatch(text)
    if parts is None or parts["scheme"] not in _SCHEMES:
        raise InvalidArgumentError(
            f"{text!r} is no location of a root or a storage path: give a local path, a file: URI or a URL such as "
            "s3://bucket/prefix (also gs: and abfss:), with letters, digits and ._=!()- only."
        )
    if {".", ".."} & set(parts["prefix"].split("/")):
        raise InvalidArgumentError(f"{text!r} has a part . or .., which stores treat differently: leave it out.")
    return ObjectPlace(f"{_SCHEMES[parts['scheme']]}://{parts['bucket']}{parts['prefix']}", profile)


def objects_at(place: RootPlace) -> ObjectStore:
    """Return the object store at a location; a remote one stays open in this process.

    Raises:
        InvalidArgumentError: there is no such profile, or the profile has an unknown option.
    """
    if isinstance(place, Path):
        return LocalObjects(place)
    return _remote_objects(place, os.getpid())


def lease_store(place: RootPlace, group: str) -> LeaseStore:
    """Return the leases of a group of a root: `BROKERS`, `LOADS`, or the group that `consumers_of` returns."""
    if isinstance(place, Path):
        return LeaseFiles(place / LEASES / group)
    prefix = f"{LEASES}/{group}"
    return LeaseObjects(objects_at(place), prefix, str(place / prefix))


def consumers_of(subscription: str) -> str:
    """Return the lease group of a subscription's consumers, one for all topics with a subscription of this name."""
    return lease_name(subscription)


def sweep_leases(place: RootPlace, before_s: float) -> int:
    """Delete the leases of all groups that were last renewed before a time; returns their number.

    Args:
        place: The root's folder or URL.
        before_s: The time, in seconds since 1970.

    Raises:
        StorageError: the leases cannot be listed or deleted.
    """
    if isinstance(place, Path):
        return sweep_lease_files(place / LEASES, before_s)
    return sweep_lease_objects(objects_at(place), LEASES, before_s)


@lru_cache(maxsize=_MAX_STORES)
def _remote_objects(place: ObjectPlace, process: int) -> ObjectStore:
    """Return the object store at a URL, opened once in each process."""
    # Imported here: their libraries take a moment to load, and local roots do not need them.
    from pulsar_on_spark.storage.objects.profiles import resolve_profile
    from pulsar_on_spark.storage.objects.remote import RemoteObjects

    def options() -> Mapping[str, str]:
        return resolve_profile(place.url, place.profile).plain_options()

    return RemoteObjects(place.url, options(), renewed_options=options)
