"""Users and passwords of htpasswd files: hashes, names that are unknown, and what is remembered."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import time

import bcrypt
import pytest
from passlib.hash import apr_md5_crypt

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.providers.basic import REMEMBERED_S, BasicProvider, Users

KEY = b"k" * 32


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def users(**passwords: str) -> Users:
    return Users.parse("\n".join(f"{name}:{value}" for name, value in passwords.items()).encode(), "It")


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_passwords_by_bcrypt(prefix: str) -> None:
    found = users(alice=prefix + hashed("secret")[4:], bob=hashed("other"))
    assert found.check("alice", b"secret", KEY)
    for name, password in (("alice", b"other"), ("alice", b""), ("bob", b"secret"), ("carol", b"secret"), ("", b"")):
        assert not found.check(name, password, KEY)


def test_passwords_by_apr1() -> None:
    found = users(alice=apr_md5_crypt.hash("secret"))
    assert found.check("alice", b"secret", KEY)
    assert not found.check("alice", b"secret2", KEY)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_hash_of_apr1_is_that_of_openssl() -> None:
    line = subprocess.check_output(["openssl", "passwd", "-apr1", "-salt", "rqXexS6Z", "hunter2"], text=True).strip()
    assert users(alice=line).check("alice", b"hunter2", KEY)


@pytest.mark.parametrize("password", [b"x" * 73, b"secret\0", b"\0", b"secret" + b"\0" * 70])
def test_passwords_that_a_hash_would_cut_are_refused(password: bytes) -> None:
    assert not users(a=hashed("secret"), b=apr_md5_crypt.hash("secret")).check("a", password, KEY)
    assert not users(a=hashed("secret"), b=apr_md5_crypt.hash("secret")).check("b", password, KEY)


@pytest.mark.parametrize(
    "line",
    [
        "alice:rqXexS6ZobobY",  # DES
        "alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
        "alice:secret",
        "alice:",
        "alice",
        ":$apr1$rqXexS6Z$0000000000000000000000",
        "alice:$5$salt$hash",
    ],
)
def test_weak_hashes_are_refused_at_the_start_with_their_line(line: str) -> None:
    with pytest.raises(InvalidArgumentError, match="line 2") as refused:
        Users.parse(f"bob:{hashed('b')}\n{line}\n".encode(), "Setting basic_auth_conf")
    assert "W6ph5Mm5Pz8" not in str(refused.value)
    assert "rqXexS6Z" not in str(refused.value)


def test_a_file_without_users_or_with_a_user_twice_is_refused() -> None:
    for content in (b"", b"# comment\n\n"):
        with pytest.raises(InvalidArgumentError, match="no users"):
            Users.parse(content, "It")
    with pytest.raises(InvalidArgumentError, match="twice"):
        Users.parse(f"a:{hashed('1')}\na:{hashed('2')}\n".encode(), "It")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        Users.parse(b"\xff:x", "It")


def test_an_unknown_user_takes_as_long_as_a_known_one() -> None:
    """Cost 10 takes 50 ms; without the hash it would be microseconds."""
    found = users(alice=hashed("secret", 10))

    def median_s(name: str) -> float:
        times = []
        for _ in range(5):
            begun = time.thread_time()
            found.check(name, b"wrong", KEY)
            times.append(time.thread_time() - begun)
        return statistics.median(times)

    known_s, unknown_s = median_s("alice"), median_s("mallory")
    assert known_s / 2 < unknown_s < known_s * 2


@pytest.mark.parametrize("name", ["alice", "mallory", "", "\ud800", "a" * 100_000])
@pytest.mark.parametrize("password", [b"wrong", b"", b"x" * 100, b"\0"])
def test_each_check_computes_one_hash_for_any_user(name: str, password: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *given: computed.append(given) or real(*given))
    assert not users(alice=hashed("secret", 4)).check(name, password, KEY)
    assert len(computed) == 1


def test_the_hash_of_an_unknown_user_is_always_the_same() -> None:
    """Else the spread of the times would tell: one hash costs 16 times the other."""
    found = users(quick=hashed("1", 4), slow=hashed("2", 8))

    def time_s(name: str) -> float:
        begun = time.thread_time()
        found.check(name, b"wrong", KEY)
        return time.thread_time() - begun

    for name in ("mallory", "mallet", "trudy", "eve"):
        times = [time_s(name) for _ in range(8)]
        assert statistics.median(times[:4]) < 4 * statistics.median(times[4:]) < 16 * statistics.median(times[:4])


def refusal(provider: BasicProvider, data: bytes) -> Failure:
    with pytest.raises(NotAuthenticatedError) as refused:
        asyncio.run(provider.authenticate(Evidence(data)))
    return refused.value.failure


def test_bytes_that_are_not_user_and_password_are_refused() -> None:
    provider = BasicProvider(lambda: users(alice=hashed("secret")))
    assert refusal(provider, b"") is Failure.MISSING
    for data in (b"alice", b":secret", b"\xff:secret", b"a" * 1_025 + b":secret"):
        assert refusal(provider, data) is Failure.MALFORMED
    assert refusal(provider, b"alice:guess") is Failure.PASSWORD
    assert refusal(provider, b"mallory:secret") is Failure.PASSWORD
    assert asyncio.run(provider.authenticate(Evidence(b"alice:secret"))).role == "alice"


def test_a_password_with_colons_is_taken_whole() -> None:
    provider = BasicProvider(lambda: users(alice=hashed("a:b:c")))
    assert asyncio.run(provider.authenticate(Evidence(b"alice:a:b:c"))).role == "alice"
    assert refusal(provider, b"alice:a:b") is Failure.PASSWORD


def test_a_right_password_is_remembered_for_a_minute_and_only_that_one() -> None:
    now_s = 0.0
    kept = users(alice=hashed("secret", 8))
    provider = BasicProvider(lambda: kept, lambda: now_s)

    def cpu_s() -> float:
        begun = time.process_time()
        asyncio.run(provider.authenticate(Evidence(b"alice:secret")))
        return time.process_time() - begun

    first_s = cpu_s()
    assert cpu_s() < first_s
    assert refusal(provider, b"alice:secret2") is Failure.PASSWORD
    now_s = REMEMBERED_S + 1
    assert cpu_s() > first_s / 4
    # Changed, or deleted: what is remembered does not count.
    kept = users(alice=hashed("changed"))
    assert refusal(provider, b"alice:secret") is Failure.PASSWORD
    kept = users(bob=hashed("secret"))
    assert refusal(provider, b"alice:secret") is Failure.PASSWORD
