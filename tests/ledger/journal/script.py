"""Scripted traces of a core, as text: `> Event` and below it the effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum

from pulsar_on_spark.ledger.journal.log import Copy, Fragment, FrameFacts, LogRecord
from pulsar_on_spark.model.ids import PathId


def copy(path: int, file: str = "1") -> Copy:
    return Copy(PathId(path), file)


def short(value: object) -> str:
    """p0/1 is file 1 on path 0; `8:p0/1,p1/1` a fragment from frame 8 on; `#3 ROLL lac 1` a frame."""
    match value:
        case Copy(path, file):
            return f"p{path}/{file}"
        case Fragment(first, copies):
            return f"{'?' if first is None else first}:" + ",".join(short(copy) for copy in copies)
        case FrameFacts(number, kind, lac):
            return f"#{number} {kind.name} lac {lac}"
        case LogRecord():
            end = "" if value.last_frame is None else f" end {value.last_frame}"
            gave_up = f" gave up {','.join(str(path) for path in value.given_up)}" if value.given_up else ""
            return f"[{value.state.name} {' '.join(short(fragment) for fragment in value.fragments)}{end}{gave_up}]"
        case Enum():
            return value.name
        case tuple():
            return "(" + " ".join(short(item) for item in value) + ")"
        case str():
            return repr(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            named = (getattr(value, field.name) for field in fields(value) if field.repr)
            return " ".join([type(value).__name__, *(short(each) for each in named if each not in ("", {}))])
        case _:
            return str(value)


def played(handle: Callable[[object], Iterable[object]], *events: object) -> str:
    """Feed the events and render what happens."""
    lines = []
    for event in events:
        lines.append(f"> {short(event)}")
        lines += [f"  {short(effect)}" for effect in handle(event)]
    return "\n".join(lines)


def trace(text: str) -> str:
    """An expected trace, from an indented literal."""
    lines = [line for line in text.splitlines() if line.strip()]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(line[indent:].rstrip() for line in lines)
