"""Housekeeping of all histories of a root: builds by policy, retention, merges, and deletion of files and tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from pulsar_on_spark.history_table.build import BuildOptions, build
from pulsar_on_spark.history_table.deletion import delete_unnamed_tables
from pulsar_on_spark.history_table.merging import merge_small_files
from pulsar_on_spark.history_table.places import Claims, find_table, history_paths
from pulsar_on_spark.history_table.recorded import recorded_progress
from pulsar_on_spark.history_table.retention import apply_retention, delete_files
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.errors import PulsarpyError, SkippableError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS, effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.collect import DEFAULT_AGES, Ages
from pulsar_on_spark.topic.maintenance.maintain import MaintainReport, maintain
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER, RepairLimits
from pulsar_on_spark.topic.maintenance.retention.holders import HISTORY_SKIPS, is_history_overdue
from pulsar_on_spark.topic.maintenance.retention.retention import is_limited

PASS_BYTES: Final = 4 << 30
"""Key and value bytes of a topic or partition that one pass builds, so that a large backlog does not delay others."""
_LOGGER: Final = logging.getLogger(__name__)


def keep_up(root: RootHandle, defaults: Policies = DEFAULTS) -> list[str]:
    """Build the histories that policies enable, apply their retention, and delete the tables of deleted topics.

    Args:
        root: The root.
        defaults: The policies for fields that neither a topic nor its namespace sets.

    Returns:
        A sentence for each step that failed; the other steps were taken.
    """
    problems: list[str] = []
    view, claims = root.store.view(), Claims(root)
    for topic in catalog.topics(view):
        policies = effective_policies(view, TopicName.parse(topic.name), defaults)
        parts = catalog.parts(view, topic)
        if not (policies.history.enabled or any(recorded_progress(view, part.topic_id).generation for part in parts)):
            continue
        problems += _keep_up_topic(root, topic, parts, policies, claims)
    for path in (None, *history_paths(root, view)):
        try:
            delete_unnamed_tables(root, path, claims)
        except (PulsarpyError, OSError) as error:
            _LOGGER.warning("History tables of deleted topics cannot be deleted: %s", error)
            problems.append(f"history tables of deleted topics: {error}")
    return problems


def maintain_with_histories(
    root: RootHandle,
    ages: Ages = DEFAULT_AGES,
    progress: Progress = silent,
    repair_limits: RepairLimits = BESIDE_A_BROKER,
    defaults: Policies = DEFAULTS,
) -> MaintainReport:
    """Run `keep_up`, and then a pass of `maintain`, which may now trim the messages that were built.

    The arguments and errors are as in `maintain`. The returned report has the problems of both.
    """
    problems = keep_up(root, defaults)
    done = maintain(root, ages, progress, repair_limits, defaults)
    return replace(done, problems=(*problems, *done.problems))


def _keep_up_topic(
    root: RootHandle, topic: TopicRecord, parts: Sequence[TopicPart], policies: Policies, claims: Claims
) -> list[str]:
    """Build a topic's history, and maintain its table.

    Returns:
        A sentence for each different error, with the name of the first topic or partition that had it.
    """

    def keep_up_table() -> None:
        table = find_table(root, root.store.view(), topic)
        if table is None:
            return
        claims.require(table.path)
        if table.exists():
            try:
                apply_retention(table, policies.history)
            finally:  # a table that must keep its rows is merged, too
                merge_small_files(table)
                delete_files(table, parts)
                table.housekeep()

    steps: list[tuple[str, Callable[[], object]]] = [
        (part.name, partial(_build, root, part, policies, claims)) for part in parts if policies.history.enabled
    ]
    problems: dict[str, str] = {}
    for name, step in [*steps, (topic.name, keep_up_table)]:
        try:
            step()
        except TopicNotFoundError:
            pass  # it was deleted meanwhile
        except (PulsarpyError, OSError) as error:
            _LOGGER.warning(
                "The housekeeping of the history of %s failed: %s", name, error, extra={"topic": topic.name}
            )
            problems.setdefault(str(error), f"history of {name}: {error}")
        except Exception as error:  # a defect, or values that no library call expects: other histories continue
            _LOGGER.exception("The housekeeping of the history of %s failed.", name, extra={"topic": topic.name})
            problems.setdefault(str(error), f"history of {name}: {error!r}")
    return list(problems.values())


def _build(root: RootHandle, part: TopicPart, policies: Policies, claims: Claims) -> None:
    """Build the history of a topic or partition.

    If a message cannot be read, and the messages that are not built yet will soon be trimmed by retention, the build
    leaves out all messages that cannot be read.
    """
    name = TopicName.parse(part.name)
    try:
        build(root, name, BuildOptions(limit_bytes=PASS_BYTES, claims=claims))
    except SkippableError as error:
        is_overdue = is_history_overdue(root.store.view(), part.topic_id, policies, datetime.now(UTC))
        if not (is_overdue and is_limited(policies.retention)):
            raise
        _LOGGER.warning(
            "The history of %s has waited for %d days, so messages that cannot be read are left out of it: %s",
            name,
            HISTORY_SKIPS.days,
            error,
            extra={"topic": name.full},
        )
        # All that waits, as the next such message would begin another wait.
        build(root, name, BuildOptions(fail_on_data_loss=False, claims=claims))
