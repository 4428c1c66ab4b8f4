from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.metadata import state
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log.chain import UnknownOutcomeError
from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.table_log import News, TableLog
from pulsar_on_spark.metadata.records import (
    FileRecord,
    LedgerRecord,
    NamespaceRecord,
    Record,
    RootRecord,
    SubscriptionRecord,
    TenantRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import DurableView, State, View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    MetadataError,
    NotARootError,
)
from tests.kit.small_disks import SmallDisk

Put = Callable[..., None]
AT = datetime(2026, 1, 1, tzinfo=UTC)
ROOT_RECORD = RootRecord(format_version=2, cluster_id="c" * 32, quorum="3/3/2")


def _names(view: View) -> list[str]:
    return [record.tenant for record in view.all(TenantRecord)]


def _note(view: View, name: str) -> object:
    record = view.get(TenantRecord, name)
    assert record is not None
    return (record.model_extra or {}).get("note")


# -- roots -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_a_root_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    assert not MetadataStore.exists(tmp_path)
    with pytest.raises(NotARootError, match=r"pulsarpy init"):
        MetadataStore(tmp_path)


def test_a_newer_format_is_refused_whatever_else_its_record_says(tmp_path: Path) -> None:
    class LaterRoot(Record):
        kind = "root"
        format_version: int

        @property
        def record_id(self) -> str:
            return "root"

    with pytest.raises(FormatVersionError, match=r"format version 3.* up to 2: upgrade"):
        MetadataStore.create(tmp_path, [LaterRoot(format_version=3)])
    with pytest.raises(FormatVersionError):
        MetadataStore(tmp_path)


def _with_feature(root: Path, use: str) -> None:
    record = RootRecord.model_validate({**ROOT_RECORD.model_dump(), "features": {"telepathy": use}})
    with suppress(FormatVersionError):  # the commit is done, and its own process does not know the feature either
        MetadataStore(root).commit(lambda view: Change([record], keys={"root": None}))


def test_a_root_with_an_unknown_feature_is_not_written(root: Path, store: MetadataStore, put: Put) -> None:
    _with_feature(root, "write")
    for process in (store, MetadataStore(root)):
        assert _names(process.view()) == []
        with pytest.raises(FormatVersionError, match=r"uses telepathy, .* can only read it: upgrade"):
            put(process, "a")
        with pytest.raises(FormatVersionError, match="telepathy"):
            process.append_cursors([CursorRow("t", "s", 0, 1, 1, 1, 1)])


def test_a_root_with_an_unknown_feature_for_readers_is_not_read(root: Path, store: MetadataStore, put: Put) -> None:
    """An open process notices it, too."""
    _with_feature(root, "read")
    for _ in range(2):
        with pytest.raises(FormatVersionError, match=r"uses telepathy, .* does not know: upgrade"):
            store.view()
        with pytest.raises(FormatVersionError, match="telepathy"):
            put(store, "a")
        with pytest.raises(FormatVersionError, match="telepathy"):
            MetadataStore(root)


def test_a_root_is_created_once_and_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    MetadataStore.create(tmp_path / "x", [ROOT_RECORD])
    again = MetadataStore.create(tmp_path / "x", [RootRecord(format_version=2, cluster_id="other", quorum="1/1/1")])
    assert again.root_record == ROOT_RECORD
    assert MetadataStore.exists(tmp_path / "x")
    # Cut off before the first record.
    for name, schema in (("main", state.MAIN_SCHEMA),):
        folder = tmp_path / "y" / "metadata" / name
        folder.mkdir(parents=True)
        create_table(LocalLog(folder), schema)
    with pytest.raises(NotARootError, match="no root record"):
        MetadataStore(tmp_path / "y")
    assert MetadataStore.create(tmp_path / "y", [ROOT_RECORD]).root_record == ROOT_RECORD


def test_one_of_many_concurrent_creators_wins(tmp_path: Path) -> None:
    def create(number: int) -> RootRecord:
        record = RootRecord(format_version=2, cluster_id=str(number), quorum="3/3/2")
        return MetadataStore.create(tmp_path / "root", [record]).root_record

    with ThreadPoolExecutor(4) as pool:
        assert len({record.cluster_id for record in pool.map(create, range(4))}) == 1


@pytest.mark.parametrize("name", ["with space", "größe 日本", "50%#x?y"])
def test_a_root_may_have_any_ordinary_or_relative_path(
    tmp_path: Path, name: str, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = MetadataStore.create(Path(name), [ROOT_RECORD])
    monkeypatch.chdir("/")
    put(store, "ü/日本")
    store.fold_and_checkpoint()
    store.vacuum()
    assert _names(MetadataStore(tmp_path / name).view()) == ["ü/日本"]
    with pytest.raises(InvalidArgumentError, match="Delta library"):
        MetadataStore.create(tmp_path / "a%20b", [ROOT_RECORD])
    assert not (tmp_path / "a%20b").exists()


# -- commits ---------------------------------------------------------------------------------------------------------


def test_a_stale_decision_is_made_again_on_the_present_view(root: Path, store: MetadataStore) -> None:
    other = MetadataStore(root)
    seen: list[object] = []

    def decide(view: View) -> Change:
        found = view.get(TenantRecord, "n")
        seen.append(found)
        if len(seen) == 1:  # another writer is faster
            other.commit(lambda _: Change(puts=[TenantRecord(tenant="n", note=1)], keys={"key": None}))
        note = 1 + (_note(view, "n") if found is not None else 0)  # type: ignore[operator]
        return Change(puts=[TenantRecord(tenant="n", note=note)], keys={"key": None})

    view = store.commit(decide)
    assert _note(view, "n") == 2
    assert seen[0] is None
    assert len(seen) == 2
    assert store.key_version("key") == 2


def test_a_decision_that_reads_or_commits_itself_is_made_again(root: Path, store: MetadataStore, put: Put) -> None:
    """The version that it was given must be the one that its keys are checked against."""
    other = MetadataStore(root)
    calls = 0

    def decide(view: View) -> Change:
        nonlocal calls
        calls += 1
        note = 1 + (_note(view, "n") if view.get(TenantRecord, "n") is not None else 0)  # type: ignore[operator]
        if calls == 1:
            put(other, "n", note=10, key="key")
            store.view()
        return Change(puts=[TenantRecord(tenant="n", note=note)], keys={"key": None})

    assert _note(store.commit(decide), "n") == 11
    assert calls == 2


def test_nothing_to_do_commits_nothing(store: MetadataStore) -> None:
    version = store.view().version
    assert store.commit(lambda view: None).version == version


def test_keys_have_the_versions_given_or_one_more(store: MetadataStore) -> None:
    assert store.key_version("q/1") is None
    store.commit(lambda view: Change(keys={"q/1": 41}))
    assert store.key_version("q/1") == 41
    store.commit(lambda view: Change(keys={"q/1": None, "q/2": 0}))
    assert store.key_version("q/1") == 42
    assert store.key_version("q/2") == 0


def test_a_commit_without_rows_and_later_ones_outlive_a_reopen(root: Path, store: MetadataStore, put: Put) -> None:
    store.commit(lambda view: Change(keys={"q/1": 5}))
    put(store, "after")
    again = MetadataStore(root)
    assert _names(again.view()) == ["after"]
    assert again.key_version("q/1") == 5


class _Unlucky:
    """Make one append of a store end without an answer, before or after it took place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: TableLog, *, after: bool) -> None:
        append = log.append
        self.left = 1

        def broken(rows: pa.Table, keys: dict[str, int], token: str) -> News | None:
            if not self.left:
                return append(rows, keys, token)
            self.left -= 1
            number = log.version + 1
            if after:
                append(rows, keys, token)
            raise UnknownOutcomeError(number)

        monkeypatch.setattr(log, "append", broken)


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_with_an_unknown_outcome_takes_place_once(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, put: Put, after: bool
) -> None:
    put(store, "n", note=1, key="key")
    unlucky = _Unlucky(monkeypatch, store._main, after=after)
    calls: list[int] = []

    def decide(view: View) -> Change:
        calls.append(view.version)
        return Change(puts=[TenantRecord(tenant="n", note=1 + _note(view, "n"))], keys={"key": None})  # type: ignore[operator]

    assert _note(store.commit(decide), "n") == 2
    assert unlucky.left == 0
    assert len(calls) == (1 if after else 2)
    assert _note(MetadataStore(root).view(), "n") == 2
    assert store.key_version("key") == 2


def test_a_commit_gives_up_after_a_bounded_number_of_attempts(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, put: Put
) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.store._ATTEMPTS", 3)
    other = MetadataStore(root)

    def always_late(view: View) -> Change:
        put(other, "n", key="key")
        return Change(keys={"key": None})

    with pytest.raises(CommitConflictError, match="conflicted with other writers in 3 attempts"):
        store.commit(always_late)


def test_an_error_in_a_decision_changes_nothing(store: MetadataStore, put: Put) -> None:
    def fails(view: View) -> Change:
        raise ValueError("no")

    version = store.view().version
    with pytest.raises(ValueError, match="no"):
        store.commit(fails)
    assert store.view().version == version
    put(store, "after")


def test_a_commit_that_is_durable_does_not_fail_because_housekeeping_does(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, put: Put, short_folds: None
) -> None:
    def full(*_: object) -> bool:
        raise MetadataError("the disk is full")

    monkeypatch.setattr(store._main, "checkpoint", full)
    for number in range(12):
        put(store, "n", note=number)
    assert _note(store.view(), "n") == 11


# -- views -----------------------------------------------------------------------------------------------------------


def test_a_view_never_changes(root: Path, store: MetadataStore, put: Put) -> None:
    put(store, "a", note=1)
    before = store.view()
    put(store, "a", note=2)
    put(MetadataStore(root), "b")
    after = store.view()
    store.commit(lambda view: Change(deletes=[TenantRecord(tenant="a")], keys={"tenant/a": None}))
    assert (_names(before), _note(before, "a")) == (["a"], 1)
    assert (_names(after), _note(after, "a")) == (["a", "b"], 2)
    assert _names(store.view()) == ["b"]


def test_only_a_durable_read_makes_a_durable_view(root: Path, store: MetadataStore, put: Put) -> None:
    put(store, "a")
    durable = store.view(durable=True)
    assert isinstance(durable, DurableView)
    assert not isinstance(store.view(), DurableView)
    assert not isinstance(store.commit(lambda view: None), DurableView)
    before = _names(durable)
    put(MetadataStore(root), "b")
    put(store, "c")
    assert _names(durable) == before, "it stays as it is, like every view"
    assert len(_names(store.view(durable=True))) == len(before) + 2


def test_threads_read_consistent_views_while_others_commit(store: MetadataStore) -> None:
    """Every view holds one generation: each commit replaces both records of a pair and adds a third."""
    stop = threading.Event()
    generations: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            view = store.view()
            records = view.all(TenantRecord)
            notes = {(record.model_extra or {})["note"] for record in records if len(record.tenant) == 1}
            assert len(notes) <= 1
            assert not notes or len(records) == 2 + next(iter(notes))
            generations.update(notes)

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(1, 31):
            pair = [TenantRecord(tenant=name, note=number) for name in ("a", "b", f"more{number}")]
            store.commit(lambda view, pair=pair: Change(puts=pair, keys={"key": None}))
        stop.set()
        for reader in readers:
            reader.result()
    assert len(generations) > 1


def test_threads_increment_one_counter(store: MetadataStore) -> None:
    def decide(view: View) -> Change:
        note = 1 + (_note(view, "n") if view.get(TenantRecord, "n") is not None else 0)  # type: ignore[operator]
        return Change(puts=[TenantRecord(tenant="n", note=note)], keys={"key": None})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.commit(decide), range(24)))
    assert _note(store.view(), "n") == 24


def test_a_deleted_record_leaves_a_tombstone_and_may_be_put_again(root: Path, store: MetadataStore, put: Put) -> None:
    ledger = LedgerRecord(topic_id="t", ledger_id=7, created_at=AT)
    store.commit(lambda view: Change(puts=[ledger], keys={"key": None}))
    store.commit(lambda view: Change(deletes=[ledger], keys={"key": None}))
    for view in (store.view(), MetadataStore(root).view()):
        assert view.get(LedgerRecord, ledger.record_id) is None
        assert view.last(LedgerRecord, ledger.record_id) == ledger
        assert view.all(LedgerRecord, "t") == []
        assert view.newest(LedgerRecord, "t") is None
    store.commit(lambda view: Change(puts=[ledger], keys={"key": None}))
    for view in (store.view(), MetadataStore(root).view()):
        assert view.newest(LedgerRecord, "t") == ledger


# -- folding and housekeeping ----------------------------------------------------------------------------------------


class LaterKind(Record):
    """A kind that this version of the project does not have."""

    kind = "of-a-later-version"
    name: str

    @property
    def record_id(self) -> str:
        return self.name


def test_unknown_kinds_and_fields_survive_folding(
    root: Path, store: MetadataStore, put: Put, short_folds: None
) -> None:
    record = LaterKind(name="x", strange=[1, {"deep": "ü"}])
    store.commit(lambda view: Change(puts=[record], keys={"key": None}))
    put(store, "n", note={"from": ["later"]})
    for number in range(40):
        put(store, "busy", note=number)
    reopened = MetadataStore(root).view()
    assert len(store._main.files) < 30
    assert reopened.get(LaterKind, "x") == record
    assert _note(reopened, "n") == {"from": ["later"]}
    assert _note(reopened, "busy") == 39


def test_committers_do_housekeeping_which_keeps_the_table_small(
    root: Path, store: MetadataStore, put: Put, short_folds: None
) -> None:
    """Two processes take turns, so that either sees only every other version."""
    other = MetadataStore(root)
    for number in range(40):
        put(store, "a", note=number)
        put(other, "b", note=number)
        assert store._main.entries_since_checkpoint() <= 8 + 2
        assert len(store._main.files) <= 3 * 8 + 2
    assert _note(MetadataStore(root).view(), "a") == 39


def test_an_idle_cursor_table_is_left_alone(root: Path, store: MetadataStore, put: Put, short_folds: None) -> None:
    store.cursors()
    log = root / "metadata" / "cursors" / "_delta_log"
    before = sorted(path.name for path in log.iterdir())
    for number in range(20):
        put(store, "a", note=number)
    assert sorted(path.name for path in log.iterdir()) == before


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers()),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(0)),
        st.tuples(
            st.sampled_from(["many", "fold", "other fold", "vacuum", "reopen"]), st.sampled_from("abc"), st.just(0)
        ),
    ),
    max_size=12,
)


@settings(max_examples=12)
@given(operations=OPERATIONS)
def test_after_any_commits_and_folds_the_table_equals_a_dict(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Folds and tombstones come often, and a fold forgets all it may.
        patch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 2)
        patch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 2)
        patch.setattr("pulsar_on_spark.metadata.store._HOUSEKEEPING_ENTRIES", 7)
        patch.setattr("pulsar_on_spark.metadata.store.FORGET_TOMBSTONES_AFTER", timedelta(0))
        patch.setattr("pulsar_on_spark.metadata.log.cleaning.KEEP_ENTRIES", 5)
        root = tmp_path_factory.mktemp("model") / "root"
        store = MetadataStore.create(root, [ROOT_RECORD])
        lagging, other = MetadataStore(root), MetadataStore(root)
        model: dict[str, int] = {}

        def commit(name: str, value: int | None) -> None:
            record = FileRecord(file_id=name, write_id="w", copies=(), length=value or 0, batches=0)
            change = Change(
                puts=[record] if value is not None else [], deletes=[record] if value is None else [], keys={name: None}
            )
            store.commit(lambda view: change)
            model.pop(name, None)
            if value is not None:
                model[name] = value

        for operation, name, value in operations:
            if operation == "put":
                commit(name, value)
            elif operation == "delete":
                commit(name, None)
            elif operation == "many":
                for number in range(4):
                    commit("busy", number)
            elif operation == "fold":
                store.fold_and_checkpoint()
            elif operation == "other fold":
                other.fold_and_checkpoint()
            elif operation == "vacuum":
                store.vacuum()
            else:
                store = MetadataStore(root)
        for reader in (store, other, lagging, MetadataStore(root)):
            assert {record.file_id: record.length for record in reader.view().all(FileRecord)} == model


def test_a_reader_that_missed_forgotten_tombstones_does_not_restore_records(
    root: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, put: Put, short_folds: None
) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.store.FORGET_TOMBSTONES_AFTER", timedelta(0))
    files = [FileRecord(file_id=f"f{n}", write_id="w", copies=(1,), length=1, batches=1) for n in range(50)]
    store.commit(lambda view: Change(puts=files, keys={"key": None}))
    lagging = MetadataStore(root)
    held = lagging.view()
    store.commit(lambda view: Change(deletes=files, keys={"key": None}))
    for number in range(20):
        put(store, "busy", note=number)
    store.fold_and_checkpoint()
    assert sum(file.rows for file in store._main.files) < 30
    assert MetadataStore(root).view().last(FileRecord, "f1") is None
    assert lagging.view().all(FileRecord) == []
    assert lagging.view().last(FileRecord, "f1") is None
    assert len(held.all(FileRecord)) == 50
    # The folder itself keeps what it had in memory, as tombstones.
    assert store.view().all(FileRecord) == []


# -- cursors ---------------------------------------------------------------------------------------------------------


def _subscription(name: str) -> SubscriptionRecord:
    return SubscriptionRecord(
        topic_id="t", name=name, type="Exclusive", start_ledger=0, start_entry=0, start_epoch=0, created_at=AT
    )


def test_cursor_rows_survive_a_reopen_and_the_newest_counts(root: Path, store: MetadataStore) -> None:
    rows = [CursorRow("t", "s", slot, 1, n, 5, n, ack_holes=b"\x00\xff") for n in (1, 3, 2) for slot in (0, 1)]
    store.append_cursors([])
    for row in rows:
        store.append_cursors([row])
    for reader in (store, MetadataStore(root)):
        assert [(row.slot, row.n, row.ack_holes) for row in reader.cursors().of("t", "s")] == [
            (0, 3, b"\x00\xff"),
            (1, 3, b"\x00\xff"),
        ]
        assert reader.cursors().of("t", "other") == ()


def test_cursors_are_folded_and_those_of_deleted_subscriptions_go(
    root: Path, store: MetadataStore, short_folds: None
) -> None:
    store.commit(lambda view: Change(puts=[_subscription("s")], keys={"key": None}))
    reader = MetadataStore(root)
    store.append_cursors([CursorRow("t", "gone", 0, 1, 1, 1, 1)])
    for n in range(40):
        store.append_cursors([CursorRow("t", "s", 0, 1, n, 5, n)])
        assert reader.cursors().of("t", "s")[0].n == n
    store.fold_and_checkpoint()
    assert len(store._cursor_log.files) < 30  # type: ignore[union-attr]
    assert reader.cursors().of("t", "gone") == ()
    assert MetadataStore(root).cursors().of("t", "s")[0].n == 39


def test_an_interrupted_refresh_loses_no_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = MetadataStore(root), MetadataStore(root)
    theirs.commit(lambda view: Change([NamespaceRecord(namespace="a/fresh")], keys={"namespace/a/fresh": None}))
    with monkeypatch.context() as patched:

        def interrupted(self: State, table: pa.Table) -> None:
            raise KeyboardInterrupt

        patched.setattr(State, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.view()
    assert mine.view().get(NamespaceRecord, "a/fresh") is not None


@pytest.mark.root
def test_the_first_commit_on_a_full_disk_fails_with_the_files_name_and_loses_nothing(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 4) as disk:
        store = MetadataStore.create(disk.at / "root", [RootRecord(format_version=2, cluster_id="c", quorum="3/3/2")])
        disk.fill()
        change = Change([NamespaceRecord(namespace="a/b")], keys={"namespace/a/b": None})
        before = time.monotonic()
        with pytest.raises(MetadataError, match="is full: free some space"):
            store.commit(lambda view: change)
        assert time.monotonic() - before < 30
        disk.make_room()
        assert store.commit(lambda view: change).get(NamespaceRecord, "a/b") is not None


@pytest.mark.root
def test_the_first_commit_on_a_disk_that_turned_read_only_fails_by_name(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 4) as disk:
        store = MetadataStore.create(disk.at / "root", [RootRecord(format_version=2, cluster_id="c", quorum="3/3/2")])
        disk.turn_read_only()
        with pytest.raises(MetadataError, match="mounted read-only: mount it read-write"):
            store.commit(lambda view: Change([NamespaceRecord(namespace="a/b")], keys={"namespace/a/b": None}))
        assert store.view().get(NamespaceRecord, "a/b") is None


def test_a_process_forgets_the_tombstones_that_its_own_folds_forgot(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_on_spark.metadata.store.FORGET_TOMBSTONES_AFTER", timedelta(hours=-1))
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 4)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 4)
    store = MetadataStore(root)
    for number in range(30):
        verdict = WriteRecord(write_id=f"w{number}", status="committed")
        store.commit(lambda view, verdict=verdict: Change([verdict], keys={"write/1": None}))
        store.commit(lambda view, verdict=verdict: Change(deletes=[verdict], keys={"write/1": None}))
    assert store.fold_and_checkpoint()
    assert sum(store.view().last(WriteRecord, f"w{number}") is not None for number in range(30)) <= 4
