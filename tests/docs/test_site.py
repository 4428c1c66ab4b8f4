"""The documentation's site lists every page that exists, and no other; workflows and hooks are valid YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

HOUSE = Path(__file__).parents[2]


def in_nav(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for each in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_nav(each)


def test_every_page_is_in_the_sites_navigation() -> None:
    nav = list(in_nav(yaml.safe_load((HOUSE / "mkdocs.yml").read_text())["nav"]))
    pages = [str(page.relative_to(HOUSE / "docs")) for page in (HOUSE / "docs").rglob("*.md")]
    assert sorted(nav) == sorted(pages)


def test_files_of_the_forge_can_be_parsed() -> None:
    files = [*(HOUSE / ".github").rglob("*.yml"), HOUSE / ".pre-commit-config.yaml"]
    assert len(files) >= 7
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file
