"""The drivers that offload policies may name: the labels of the root's cold storage paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pulsar_on_spark.metadata.records import FileRecord, PathRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import OffloadPolicies

_FIELD: Final = "offload_policies"


def cold_labels(view: View) -> set[str]:
    """Return the labels of the cold paths that are neither lost nor retired."""
    return {
        path.label for path in view.all(PathRecord) if path.role == "cold" and path.state not in ("lost", "retired")
    }


def drivers_of_files(view: View) -> dict[str, set[str]]:
    """Return, by file id, the drivers that the policies in force name for the topics in each offloaded file."""
    cold = {file.file_id for file in view.all(FileRecord) if file.is_cold}
    drivers: dict[str, set[str]] = {}
    for topic in view.all(TopicRecord) if cold else ():
        driver = effective_policies(view, TopicName.parse(topic.name)).offload_policies.driver
        for segment in view.all(SegmentRecord, topic.topic_id) if driver else ():
            if segment.file_id in cold:
                drivers.setdefault(segment.file_id, set()).add(driver)
    return drivers


def check_driver(view: View, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], what: str) -> None:
    """Refuse a new driver that is not the label of a cold path, so that tenants cannot choose where data go.

    Args:
        view: The metadata.
        before: The policies before the change as JSON, by field.
        after: The policies after it.
        what: The owner of the policies, for the error.

    Raises:
        InvalidArgumentError: no cold path has the driver as its label.
    """
    driver, labels = _driver(after), cold_labels(view)
    if driver not in ("", _driver(before), *labels):
        known = ", ".join(sorted(filter(None, labels))) or "none: add a path with `pulsarpy storage add --role cold`"
        raise InvalidArgumentError(
            f"The driver {driver!r} in policy {_FIELD!r} of {what} is not supported: give the label of a cold storage "
            f"path ({known})."
        )


def _driver(policies: Mapping[str, JsonValue]) -> str:
    return OffloadPolicies.model_validate(policies.get(_FIELD, {})).driver
