"""The storage paths that a broker writes its journals to, and the feature of roots with journals on object stores."""

from pathlib import Path

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.features import OBJECT_JOURNALS
from pulsar_on_spark.metadata.records import PathRecord, RootRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.health import PathRole, PathState

URL = "s3://bucket/journals"


def root_with_url(folder: Path, role: PathRole = "journal") -> Root:
    root = Root.create(folder / "root")
    record = PathRecord(path_id=9, uri=URL, role=role)
    root.store.commit(lambda _: Change(puts=[record], keys={keys.path(9): None}))
    return root


def set_state(root: Root, path_id: int, state: PathState) -> None:
    record = next(each for each in root.store.view().all(PathRecord) if each.path_id == path_id)
    changed = record.model_copy(update={"state": state})
    root.store.commit(lambda _: Change(puts=[changed], keys={keys.path(path_id): None}))


def chosen(root: Root) -> list[int]:
    return [path.path_id for path in root.writable_journal_paths(root.store.view())]


def features(root: Root) -> set[str]:
    record = root.store.view().get(RootRecord, "root")
    assert record is not None
    return set(record.features)


def test_disks_are_preferred_while_they_are_enough_for_the_ack_quorum(tmp_path: Path) -> None:
    root = root_with_url(tmp_path)
    assert chosen(root) == [0, 1, 2]
    set_state(root, 0, "draining")
    assert chosen(root) == [1, 2]
    set_state(root, 1, "draining")
    assert chosen(root) == [2, 9], "the quorum is 3/3/2"


def test_a_url_for_segments_holds_no_journal(tmp_path: Path) -> None:
    root = root_with_url(tmp_path, "segments")
    set_state(root, 0, "draining")
    set_state(root, 1, "draining")
    assert chosen(root) == [2]


def test_the_feature_is_set_before_the_first_journal_on_an_object_store(tmp_path: Path) -> None:
    root = root_with_url(tmp_path)
    root.announce_journals(root.writable_journal_paths(root.store.view()))
    assert OBJECT_JOURNALS not in features(root)

    set_state(root, 0, "draining")
    set_state(root, 1, "draining")
    for _ in range(2):
        root.announce_journals(root.writable_journal_paths(root.store.view()))
        assert OBJECT_JOURNALS in features(root)
