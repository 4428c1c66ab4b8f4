"""Options of object stores by the name of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE, resolve_profile

SECRET = "kiwi-7d1e0c"


def write(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "storage.toml"
    file.write_text(text)
    return {FILE_VARIABLE: str(file)}


def test_without_a_file_the_stores_own_chain_is_used(tmp_path: Path) -> None:
    profile = resolve_profile("s3://bucket/root", environment={"HOME": str(tmp_path)})
    assert (profile.name, profile.plain_options()) == ("", {})


def test_the_profile_with_the_longest_match_is_used(tmp_path: Path) -> None:
    environment = write(
        tmp_path,
        """
        [profiles.all]
        match = "s3://bucket"
        aws_region = "a"
        [profiles.one]
        match = "s3://bucket/root/"
        aws_region = "b"
        """,
    )
    assert resolve_profile("s3://bucket/root", environment=environment).name == "one"
    assert resolve_profile("s3://bucket/other", environment=environment).name == "all"
    assert resolve_profile("s3://bucket/rootier", environment=environment).name == "all"
    assert resolve_profile("s3://bucket-2", environment=environment).name == ""


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    environment = write(tmp_path, '[profiles.zone-a]\naws_region = "a"\naws_endpoint = "http://x"\n')
    environment["PULSARPY_STORAGE_ZONE_A_AWS_REGION"] = "b"
    profile = resolve_profile("s3://bucket", "zone-a", environment)
    assert profile.plain_options() == {"aws_region": "b", "aws_endpoint": "http://x"}


def test_a_profile_of_the_environment_alone_can_be_named(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PULSARPY_STORAGE_LAB_AWS_REGION": "b"}
    assert resolve_profile("s3://bucket", "lab", environment).plain_options() == {"aws_region": "b"}


def test_the_files_default_is_in_the_users_configuration_folder(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "pulsarpy" / "storage.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[profiles.x]\nmatch = "gs://b"\n')
    assert resolve_profile("gs://b/root", environment={"HOME": str(tmp_path)}).name == "x"


def test_an_unknown_profile_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Profile 'lab' of s3://bucket is unknown .* \[profiles.lab\] to"):
        resolve_profile("s3://bucket", "lab", {"HOME": str(tmp_path)})


@pytest.mark.parametrize("name", ["a b", "../x", "x" * 65])
def test_a_name_has_letters_and_digits(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a name"):
        resolve_profile("s3://bucket", name, {"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "text",
    [
        f'[profiles.x\naws_secret_access_key = "{SECRET}"',
        f'[profiles.x]\naws_secret_access_key = ["{SECRET}"]',
        f'profiles = "{SECRET}"',
        f'[profiles]\nx = "{SECRET}"',
        "\x00",
    ],
)
def test_a_broken_file_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"The profiles in .* are not valid") as raised:
        resolve_profile("s3://bucket", environment=write(tmp_path, text))
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        resolve_profile("s3://bucket", environment={FILE_VARIABLE: str(tmp_path)})


def test_values_are_not_shown(tmp_path: Path) -> None:
    profile = resolve_profile("s3://b", "x", write(tmp_path, f'[profiles.x]\naws_secret_access_key = "{SECRET}"'))
    assert SECRET not in f"{profile} {profile!r} {profile.options}"
    assert profile.plain_options() == {"aws_secret_access_key": SECRET}
