"""What the documents promise exists: commands, make targets, files (wiring only)."""

import re
from pathlib import Path

import pytest

from cli.main import command_names

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_commands_exist(document: Path) -> None:
    named = set(re.findall(r"`(?:\.venv/bin/)?vfm ([a-z]+)", document.read_text()))
    assert named - set(command_names()) == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_make_targets_exist(document: Path) -> None:
    named = set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", document.read_text(), re.MULTILINE))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {a or b for a, b in named} - set(targets) == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []
