"""What strangers wrote stays text, without a browser. Tier: wiring (no process group)."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from common.pages import duration, embed_json, figure, page, stacked_bar, table, text
from tests.pages.samples import HOSTILE


@pytest.mark.parametrize("said", HOSTILE)
def test_embedded_json_reads_back_and_cannot_end_its_element(said: str) -> None:
    embedded = embed_json({"a": [said], said: 1})
    assert json.loads(embedded) == {"a": [said], said: 1}
    assert not set(embedded) & set("<>&\u2028\u2029")


def test_json_without_a_number_is_null() -> None:
    assert (
        embed_json([math.nan, math.inf, {"a": (-math.inf, 1.5)}]) == '[null,null,{"a":[null,1.5]}]'
    )


def test_names_that_are_no_utf8_are_shown_escaped() -> None:
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    assert text(name) == "caf\\udce9.mp4"
    assert json.loads(embed_json(name)) == name
    embed_json(name).encode("utf-8")


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)


@pytest.mark.parametrize("said", HOSTILE)
def test_foreign_text_adds_no_element_and_no_attribute(said: str) -> None:
    markup = table([said], [[said]], code=True) + stacked_bar([(said, "fill-0", 1.0)], 2.0)
    parser = Elements()
    parser.feed(markup)
    known = ["div", "table", "thead", "tr", "th", "tbody", "tr", "td", "code"]
    assert parser.names == [*known, "svg", "rect", "title"]


def test_the_policy_names_exactly_the_script_and_the_style_of_the_page() -> None:
    html = page(title="</title>", body="", styles=[], scripts=["pager.js"], data={"d": HOSTILE})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.S)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (7260, "2 h 01 min")],
)
def test_durations_round_before_they_are_split(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_figures_keep_four_digits() -> None:
    assert [figure(v) for v in (3.0, 0.123456, 1234567.8, math.nan)] == [
        "3",
        "0.1235",
        "1,234,568",
        "not a number",
    ]


def test_parts_of_a_bar_have_the_widths_of_their_seconds() -> None:
    markup = stacked_bar([("a", "fill-0", 3.0), ("b", "fill-1", 1.0)], 8.0)
    left = [float(x) for x in re.findall(r' x="([\d.]+)"', markup)]
    width = [float(w) for w in re.findall(r' width="([\d.]+)"', markup)]
    assert left == [0.0, 375.0]
    assert width == [373.0, 123.0]  # 3/8 and 1/8 of 1000, less the gap of 2.
