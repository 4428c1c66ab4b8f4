"""Places of roots, as users give them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.objects.local import LocalObjects
from pulsar_on_spark.storage.root_place import ObjectPlace, consumers_of, lease_store, objects_at, parse_place


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://my.bucket-1/a/b_c.d=1/", "s3://my.bucket-1/a/b_c.d=1"),
        ("s3a://bucket/root", "s3://bucket/root"),
        ("gs://bucket/root", "gs://bucket/root"),
        ("abfss://container@account.dfs.core.windows.net/root", "abfss://container@account.dfs.core.windows.net/root"),
    ],
)
def test_a_url_is_a_place_on_an_object_store(given: str, url: str) -> None:
    place = parse_place(given, "mine")
    assert place == ObjectPlace(url, "mine")
    assert str(place) == url
    assert parse_place(place) == place
    assert pickle.loads(pickle.dumps(place)) == place


def test_a_path_is_a_place_in_a_folder(tmp_path: Path) -> None:
    for given in (tmp_path, str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert parse_place(given) == tmp_path
    assert isinstance(objects_at(tmp_path), LocalObjects)


@pytest.mark.parametrize(
    "given",
    [
        "hdfs://host/root",
        "http://bucket/root",
        "s3://",
        "s3:///root",
        "s3://b/a b",
        "s3://b/ü",
        "s3://b/a%20b",
        "s3://b//a",
    ],
)
def test_a_url_that_stores_do_not_share_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is no location of a root .*s3://bucket/prefix"):
        parse_place(given)


@pytest.mark.parametrize("given", ["s3://b/a/../c", "s3://b/."])
def test_a_url_with_names_of_dots_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"a part \. or \.\., which"):
        parse_place(given)


def test_a_place_below_keeps_the_profile() -> None:
    assert ObjectPlace("s3://b/root", "mine") / "storage/0" == ObjectPlace("s3://b/root/storage/0", "mine")


def test_leases_are_in_a_group_of_their_own(tmp_path: Path) -> None:
    store = lease_store(tmp_path, consumers_of("my sub/1"))
    assert Path(store.place).parent == tmp_path / "leases"
    assert consumers_of("my sub/1").startswith("my_sub_1-")
