"""One thing that is wrong with a shard, in a form that a person and a script can read."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Defect:
    """`what` is a short slug; `value` the sentence with what was found and what was expected."""

    shard: str
    member: str = ""
    """The file or clip inside the shard; empty where it is the shard itself."""
    what: str
    value: str

    def line(self) -> str:
        """`SHARD: MEMBER: WHAT: VALUE`; signs that would steer a terminal are shown as numbers."""
        parts = (self.shard, self.member, self.what, self.value)
        return printable(": ".join(part for part in parts if part))


def printable(text: str) -> str:
    """`text` on one line, without control signs and lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
