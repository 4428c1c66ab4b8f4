"""Untrusted text, made safe for a terminal and a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text without characters that control a terminal or are invisible: those that `repr` would escape are escaped.

    These are control characters (line breaks and escape sequences among them), marks that turn the direction of
    writing, line and paragraph separators, invisible characters and lone surrogates. Backslashes stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
