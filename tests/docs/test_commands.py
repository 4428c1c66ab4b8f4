"""Every command that a page, an error or a docstring names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main

from pulsar_on_spark.cli.app import app

HOUSE = Path(__file__).parents[2]
NAMED = re.compile(r"(?:`|\$ |^|ExecStart=\S*/)pulsarpy ((?:[a-z][a-z-]*(?: |\\\||(?=[`\n\]]))){1,2})", re.MULTILINE)
WORD = re.compile(r"[a-z][a-z-]*")


def named() -> Iterator[tuple[Path, list[str]]]:
    folders = ((HOUSE, "README.md"), (HOUSE / "docs", "**/*.md"), (HOUSE / "docs", "*.service"))
    pages = [
        page for folder, files in (*folders, (HOUSE / "pulsar_on_spark", "**/*.py")) for page in folder.glob(files)
    ]
    for page in pages:
        for found in NAMED.finditer(page.read_text()):
            yield page, WORD.findall(found[1])


def test_commands_that_are_named_exist() -> None:
    groups = {
        name: getattr(command, "commands", None) for name, command in typer.main.get_command(app).commands.items()
    }
    unknown = []
    seen = 0
    for page, words in named():
        seen += 1
        if words[0] not in groups or (len(words) > 1 and groups[words[0]] and words[1] not in groups[words[0]]):
            unknown.append(f"{page.relative_to(HOUSE)}: pulsarpy {' '.join(words)}")
    assert seen > 60
    assert unknown == []
