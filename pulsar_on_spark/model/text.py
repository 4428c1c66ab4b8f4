"""Texts for terminals, logs and errors."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape the characters that control a terminal or are invisible, as `repr` does.

    These are control characters (including line breaks and escape sequences), marks that change the writing direction,
    line and paragraph separators, invisible characters and lone surrogates. Backslashes are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def reason_of(message: str) -> str:
    """Return pydantic's message of a failed validation without its prefix `Value error, `, if it has one."""
    return message.removeprefix("Value error, ")
