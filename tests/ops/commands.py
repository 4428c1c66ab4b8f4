"""Commands to kill: each scenario prepares the root and gives commands, each with a check that it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsar_on_spark.metadata.records import (
    IncarnationRecord,
    NamespaceRecord,
    PathRecord,
    SealRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
)
from pulsar_on_spark.model.errors import NotARootError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.policies.effective import topic_policies
from pulsar_on_spark.topic.maintenance.repair.checking import check
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.root_checks import violations
from tests.ops.live_root import BROKERED, KEYED, SPREAD, WRITTEN, LiveRoot
from tests.topic.managed_ledger.sealing.test_lost_frames import ranges


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments of `pulsarpy` without the root, whether what they ask for is so, and what it says if it was before."""

    arguments: list[str]
    is_done: Callable[[Root], bool]
    refusal: str = ""
    needs_root: bool = True


EXISTS, ABSENT, LARGER, ALREADY, RETIRED = "exists already", "does not exist", "larger number", "already", "retired"
Scenario = Callable[[LiveRoot], Iterator[Command]]


def topics(live: LiveRoot) -> Iterator[Command]:
    name = live.fresh("topic")
    yield Command(["topics", "create", name, "--partitions", "2"], lambda root: _partitions(root, name) == 2, EXISTS)
    messages.write(live.open(), name, [b"1", b"2"])
    starts = dict.fromkeys(messages.target(live.open(), name).parts, EARLIEST)
    subscriptions.create_subscriptions(live.open().store, "s", "Shared", starts)
    yield Command(["topics", "add-partitions", name, "3"], lambda root: _partitions(root, name) == 3, LARGER)
    yield Command(
        ["subscriptions", "delete", name, "s"],
        lambda root: not [each for each in root.store.view().all(SubscriptionRecord) if each.name == "s"],
        ABSENT,
    )
    yield Command(["topics", "delete", name, "--force"], lambda root: _topic(root, name) is None, ABSENT)


def grown(live: LiveRoot) -> Iterator[Command]:
    more = (_partitions(live.open(), SPREAD) or 0) + 1
    yield Command(
        ["topics", "add-partitions", SPREAD, str(more)], lambda root: _partitions(root, SPREAD) == more, LARGER
    )


def tenants(live: LiveRoot) -> Iterator[Command]:
    tenant = live.fresh("tenant")
    namespace = f"{tenant}/n"
    yield Command(["tenants", "create", tenant], lambda root: _has(root, TenantRecord, tenant), EXISTS)
    yield Command(["namespaces", "create", namespace], lambda root: _has(root, NamespaceRecord, namespace), EXISTS)
    for name in ("a", "b"):
        messages.write(_with_topic(live, f"{namespace}/{name}"), f"{namespace}/{name}", [b"1"])
    yield Command(
        ["namespaces", "delete", namespace, "--force"], lambda root: not _has(root, NamespaceRecord, namespace), ABSENT
    )
    yield Command(["tenants", "delete", tenant, "--force"], lambda root: not _has(root, TenantRecord, tenant), ABSENT)


def policies(live: LiveRoot) -> Iterator[Command]:
    seconds = int(live.fresh("x").partition("-")[2]) + 1_000_000
    topic = TopicName.parse(WRITTEN)

    def is_set(root: Root) -> bool:
        return topic_policies(root.store.view(), topic).get("message_ttl") == seconds

    yield Command(["policies", "set", topic.full, "message_ttl", str(seconds)], is_set)
    yield Command(
        ["policies", "unset", topic.full, "message_ttl"],
        lambda root: "message_ttl" not in topic_policies(root.store.view(), topic),
    )


def schemas(live: LiveRoot) -> Iterator[Command]:
    name = live.fresh("typed")
    live.open().create_topic(name)
    for fields in (1, 2):
        made = [{"name": f"f{n}", "type": ["null", "int"], "default": None} for n in range(fields)]
        file = live.scratch / "schema.json"
        file.write_text(json.dumps({"type": "record", "name": "R", "fields": made}))

        def has_versions(root: Root, count: int = fields) -> bool:
            return len(registry.versions(root.store.view(), TopicName.parse(name))) == count

        yield Command(["schemas", "register", name, str(file)], has_versions)


def maintenance(live: LiveRoot) -> Iterator[Command]:
    live.stir()
    yield Command(["maintain", "--abort-after", "0s"], lambda root: True)
    live.stir()
    yield _repair(live)
    yield Command(["storage", "check"], _is_whole)
    yield Command(["status", "--verify"], _is_whole)


def drained(live: LiveRoot) -> Iterator[Command]:
    directory = live.scratch / live.fresh("disk")
    yield Command(["storage", "add", str(directory)], lambda root: _path(root, directory) is not None, ALREADY)
    path = _path(live.open(), directory)
    assert path is not None
    live.stir()
    yield Command(["storage", "drain", str(path.path_id)], lambda root: _state(root, directory) == "draining")
    yield _repair(live)
    yield Command(["maintain", "--abort-after", "0s"], _is_whole)  # files of writes that failed lie there
    yield Command(["storage", "retire", str(path.path_id)], lambda root: _state(root, directory) == "retired", RETIRED)


def lost(live: LiveRoot) -> Iterator[Command]:
    yield _repair(live)
    directory = live.scratch / live.fresh("disk")
    yield Command(["storage", "add", str(directory)], lambda root: _path(root, directory) is not None, ALREADY)
    path = _path(live.open(), directory)
    assert path is not None
    live.write(WRITTEN)
    live.write(KEYED)
    yield Command(["storage", "drain", str(path.path_id)], lambda root: _state(root, directory) == "draining")
    yield Command(["storage", "resume", str(path.path_id)], lambda root: _state(root, directory) == "writable")
    shutil.rmtree(directory)
    yield Command(["storage", "lost", str(path.path_id)], lambda root: _state(root, directory) == "lost")
    yield _repair(live)
    yield Command(["storage", "retire", str(path.path_id)], lambda root: _state(root, directory) == "retired", RETIRED)


def compaction(live: LiveRoot) -> Iterator[Command]:
    live.write(KEYED)
    found = messages.read(live.open(), KEYED)
    newest = {dict(each.columns)["key"]: each.id for each in found}

    def is_compacted(root: Root) -> bool:
        return [each.id for each in messages.read_compacted(root, KEYED)] == sorted(newest.values())

    yield Command(["compact", KEYED], is_compacted)


def recovery(live: LiveRoot) -> Iterator[Command]:
    yield Command(["recover"], _is_recovered)
    assert live.shown(live.open()) == live.expected[BROKERED]
    yield Command(["maintain"], lambda root: messages.values(root, BROKERED) == live.expected[BROKERED])
    live.die_as_broker()


def given_up_path(live: LiveRoot) -> Iterator[Command]:
    """A single copy of a dead broker's journal is left, the longest: it has all that was acknowledged."""
    topic = live.fresh("torn")
    live.open().create_topic(topic)
    incarnation = live.die_as_broker(topic)
    *gone, _ = sorted(live.journals(incarnation).items(), key=lambda found: _size(found[1]))
    for _, directory in gone:
        shutil.rmtree(directory)

    def is_closed(root: Root) -> bool:
        record = root.store.view().get(IncarnationRecord, incarnation)
        return record is not None and record.state == "CLOSED" and live.shown(root, topic) == live.expected[topic]

    paths = [argument for path_id, _ in gone for argument in ("--give-up-path", str(path_id))]
    yield Command(["recover", *paths, "--incarnation", incarnation, "--yes"], is_closed)
    yield Command(["maintain"], lambda root: messages.values(root, topic) == live.expected[topic])
    live.open().delete_topic(topic, force=True)


def given_up_frames(live: LiveRoot) -> Iterator[Command]:
    """A frame of a closed journal is bad in every copy."""
    topic = live.fresh("holed")
    log = LogOnDisk(live.open())
    log.open_ledgers([topic])
    ends: list[int] = []
    for number in range(3):
        log.append({topic: [single_entry(ClientMessage(b"%d" % number * 1_000))]})
        ends.append(min(map(_size, live.journals(log.incarnation).values())))
    log.close()
    for directory in live.journals(log.incarnation).values():
        for file in directory.glob("*/frames.*"):
            written = bytearray(file.read_bytes())
            written[(ends[0] + ends[1]) // 2] ^= 1
            file.write_bytes(written)

    def is_given_up(root: Root) -> bool:
        seal = root.store.view().get(SealRecord, log.incarnation)
        return seal is not None and [(each.begin, each.end) for each in seal.given_up] == [(1, 2)]

    yield Command(["recover", "--give-up-frames", "--incarnation", log.incarnation, "--yes"], is_given_up)
    yield Command(["maintain"], lambda root: ranges(root, topic) == ([(0, 1), (2, 3)], 1))
    live.open().delete_topic(topic, force=True)


def backup(live: LiveRoot) -> Iterator[Command]:
    target = live.scratch / live.fresh("backup")

    def is_good(root: Root) -> bool:
        if not target.exists():
            return False
        copy = Root.open(target)
        read = messages.values(copy, WRITTEN)
        return violations(copy) == [] and read == live.expected[WRITTEN] and check(copy).is_good

    yield Command(["backup", str(target)], is_good, "nothing exists yet")
    for made in live.scratch.glob(f"{target.name}*"):
        shutil.rmtree(made)


def beginning(live: LiveRoot) -> Iterator[Command]:
    made = live.scratch / live.fresh("new")
    yield Command(["init", str(made)], lambda root: _is_root(made), "is a root already", needs_root=False)
    shutil.rmtree(made)


SCENARIOS: tuple[Scenario, ...] = (
    topics,
    grown,
    tenants,
    policies,
    schemas,
    maintenance,
    drained,
    lost,
    compaction,
    recovery,
    given_up_path,
    given_up_frames,
    backup,
    beginning,
)


def _topic(root: Root, name: str) -> TopicRecord | None:
    return root.store.view().get(TopicRecord, TopicName.parse(name).full)


def _partitions(root: Root, name: str) -> int | None:
    found = _topic(root, name)
    return None if found is None else found.partitions


def _with_topic(live: LiveRoot, name: str) -> Root:
    root = live.open()
    root.create_topic(name)
    return root


def _has(root: Root, kind: type[TenantRecord | NamespaceRecord], record_id: str) -> bool:
    return root.store.view().get(kind, record_id) is not None


def _path(root: Root, directory: Path) -> PathRecord | None:
    found = [each for each in root.store.view().all(PathRecord) if each.uri == str(directory)]
    return found[-1] if found else None


def _state(root: Root, directory: Path) -> str | None:
    found = _path(root, directory)
    return None if found is None else found.state


def _repair(live: LiveRoot) -> Command:
    check(live.open())  # reports what has rotted: repair itself reads a part of all at a time
    return Command(["storage", "repair"], _is_whole)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*/frames.*"))


def _is_root(directory: Path) -> bool:
    try:
        return violations(Root.open(directory)) == []
    except NotARootError:
        return False


def _is_whole(root: Root) -> bool:
    return check(root).is_good


def _is_recovered(root: Root) -> bool:
    return all(each.state == "CLOSED" for each in root.store.view().all(IncarnationRecord))
