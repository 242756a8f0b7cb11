"""The embedded default: a deterministic text encoder that needs no weights and no download.

A word's vector is the mean of random unit vectors, one for the word and one for each of its
character trigrams, each a pure function of its spelling. Words that share letters lie near each
other, words that share none are nearly orthogonal (Johnson and Lindenstrauss 1984), so a network
can tell any captions apart and learn what their words look like. It knows no meaning: "dog" is as
far from "puppy" as from "car". For that, use a trained encoder behind the same interface.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from common import rng
from common.errors import ConfigError
from models.sinusoid import sinusoid


@dataclass(kw_only=True)
class HashedTextConfig:
    """Size of the embedding, and the most tokens that a caption keeps."""

    kind: Literal["hashed"] = "hashed"
    dim: int = 128
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.dim < 8 or self.dim % 4:
            raise ConfigError(f"text.dim must be a multiple of 4, at least 8, got {self.dim}")
        if self.max_tokens < 1:
            raise ConfigError(f"text.max_tokens must be at least 1, got {self.max_tokens}")


class HashedTextEncoder:
    """See `models.text.base.TextEncoder` for the contract. Case and punctuation are ignored."""

    def __init__(self, config: HashedTextConfig) -> None:
        self.dim = config.dim
        self.max_tokens = config.max_tokens
        self._word = lru_cache(maxsize=65_536)(self._embed_word)

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Captions to `float32 [L, d]` and the tokens of each."""
        words = [split_words(caption)[: self.max_tokens] for caption in captions]
        lens = [len(w) for w in words]
        if not sum(lens):
            return torch.zeros(0, self.dim), lens
        vectors = torch.stack([self._word(word) for group in words for word in group])
        place = torch.cat([torch.arange(n) for n in lens])
        # Word order enters as a small sinusoid, so that "dog bites man" differs from its reverse.
        return vectors + 0.1 * sinusoid(place, self.dim), lens

    def _embed_word(self, word: str) -> Tensor:
        marked = f"<{word}>"
        parts = [word, *(marked[i : i + 3] for i in range(len(marked) - 2))]
        rows = torch.zeros(len(parts), dtype=torch.int64)
        keys = rng.keys(0, "hashed_text", step=0, sample_ids=parts)
        vectors = rng.normal_rows(keys, rows, self.dim)
        # The whole word weighs as much as all its trigrams together.
        total = vectors[0] + vectors[1:].mean(0) * max(len(parts) - 1, 1) ** 0.5
        return total / total.norm() * self.dim**0.5


def split_words(caption: str) -> list[str]:
    """Words, numbers and emoji, lower case, in one spelling of each (NFKC); accents are kept.

    Marks belong to their word: in Devanagari or Thai they are its vowels. A caption of punctuation
    alone gives its characters, so that no prompt counts as none; only a blank one has no words.
    """
    text = unicodedata.normalize("NFKC", caption).lower()
    kinds = [unicodedata.category(c) for c in text]
    spaced = [_spaced(c, kind) for c, kind in zip(text, kinds, strict=True)]
    # Not separators, controls or lone surrogates, which have no bytes to hash.
    visible = [c for c, kind in zip(text, kinds, strict=True) if kind[0] not in "ZC"]
    return "".join(spaced).split() or visible


def _spaced(character: str, kind: str) -> str:
    """The character as it enters a word, or with spaces around where it ends one."""
    if kind == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""  # Joiners, soft hyphens, variation selectors: seen nowhere, and inside words.
    if character.isalnum() or character == "_" or kind in ("Mn", "Mc"):
        return character
    return f" {character} " if kind == "So" else " "
