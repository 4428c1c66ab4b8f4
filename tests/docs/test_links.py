"""Links between pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

HOUSE = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [*HOUSE.glob("*.md"), *HOUSE.glob("changes/README.md"), *(HOUSE / "docs").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or bool(anchor and anchor not in anchors(target))


def test_links_lead_somewhere() -> None:
    found = [(page, link) for page in pages() for link in LINK.findall(FENCED.sub("", page.read_text()))]
    assert len(found) > 100
    assert [f"{page.relative_to(HOUSE)}: {link}" for page, link in found if broken(page, link)] == []
