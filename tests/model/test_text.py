"""Text of others, as terminals and logs get it."""

from __future__ import annotations

import pytest

from pulsar_on_spark.model.text import printable


@pytest.mark.parametrize("text", ["", "plain", "Zürich 東京 مرحبا 🙂", r"C:\x1b", '{"a": "\\u001b"}'])
def test_visible_characters_are_not_escaped(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\tc\rd\x08\x7f\x9b", r"a\nb\tc\rd\x08\x7f\x9b"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("\u202eevil\u2066\u200f\u200b\ufeff", r"\u202eevil\u2066\u200f\u200b\ufeff"),
        ("\udc9b", r"\udc9b"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_control_and_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()
