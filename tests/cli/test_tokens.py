"""Keys and tokens by the command line, as a broker accepts them."""

from __future__ import annotations

import base64
import json
import stat
import time
from pathlib import Path

import pytest

from pulsar_on_spark.security import keys
from pulsar_on_spark.security.providers.token import TokenRules, verify

from .test_app import Run, ok, run  # noqa: F401  (a fixture)


def role_of(token: str, key: keys.TokenKey) -> str:
    return verify(token.strip().encode(), key, TokenRules(), time.time()).role


def test_a_token_of_a_secret_key(run: Run, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "secret.key"
    ok(run("tokens", "create-secret-key", "-o", file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_bytes()) == 32
    token = ok(run("tokens", "create", "-sk", f"file://{file}", "-s", "orders", "-e", "1h", "-h", "team=sales"))
    assert role_of(token, keys.secret_key(file.read_bytes(), "it")) == "orders"
    header, claims = map(json.loads, ok(run("tokens", "show", token.strip())).splitlines())
    assert header["alg"] == "HS256"
    assert header["team"] == "sales"
    assert claims["sub"] == "orders"
    assert time.time() + 3000 < claims["exp"] < time.time() + 3700
    assert json.loads(ok(run("tokens", "validate", "-sk", file, token.strip())))["sub"] == "orders"
    again = run("tokens", "create-secret-key", "-o", file)
    assert again.code == 1
    assert "exists" in again.err


def test_a_secret_key_in_base64(run: Run) -> None:  # noqa: F811
    made = ok(run("tokens", "create-secret-key", "-b", "-a", "HS512")).strip()
    assert len(base64.b64decode(made)) == 64
    token = ok(run("tokens", "create", "--secret-key", f"data:;base64,{made}", "--subject", "a", "-a", "HS512"))
    assert role_of(token, keys.secret_key(base64.b64decode(made), "it")) == "a"


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "ES512"])
def test_a_token_of_a_private_key(run: Run, tmp_path: Path, algorithm: str) -> None:  # noqa: F811
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    made = ("--output-private-key", private, "--output-public-key", public, "-a", algorithm)
    ok(run("tokens", "create-key-pair", *made))
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    token = ok(run("tokens", "create", "-pk", private, "-s", "orders", "-a", algorithm)).strip()
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    assert role_of(token, keys.public_key(public.read_bytes(), "it")) == "orders"
    assert json.loads(ok(run("tokens", "validate", "-pk", public, "-f", file))) == {"sub": "orders"}


def test_invalid_keys_and_tokens_are_refused_in_one_sentence(run: Run, tmp_path: Path) -> None:  # noqa: F811
    key, other, open_ = tmp_path / "key", tmp_path / "other", tmp_path / "open"
    for each in (key, other):
        ok(run("tokens", "create-secret-key", "-o", each))
    open_.write_bytes(key.read_bytes())
    open_.chmod(0o644)
    token = ok(run("tokens", "create", "-sk", key, "-s", "a")).strip()
    for said, *arguments in (
        ("is invalid", "validate", "-sk", other, token),
        ("not a token", "show", "x"),
        ("one key", "create", "-s", "a"),
        ("does not fit", "create", "-sk", key, "-s", "a", "-a", "RS256"),
        ("no secret key", "create-secret-key", "-a", "none"),
        ("no pair", "create-key-pair", "--output-private-key", "p", "--output-public-key", "q", "-a", "HS256"),
        ("1 to 1024 bytes", "create", "-sk", key, "-s", ""),
        ("NAME=VALUE", "create", "-sk", key, "-s", "a", "-h", "x"),
        ("chmod o=", "create", "-sk", open_, "-s", "a"),
        ("several ways", "show", "-i", token),
    ):
        refused = run("tokens", *arguments)
        assert refused.code == 1
        assert said in " ".join(refused.err.split())
