"""Wiring tier: the embedded text encoder."""

import pytest
import torch

from common.errors import ConfigError
from models.text.hashed import HashedTextConfig, HashedTextEncoder, split_words


@pytest.fixture
def encoder():
    return HashedTextEncoder(HashedTextConfig(dim=64, max_tokens=5))


def test_words():
    assert split_words("A dog's BALL, no. 7 — Ünïcode!") == [
        "a", "dog", "s", "ball", "no", "7", "ünïcode",
    ]  # fmt: skip


def test_words_of_other_scripts_keep_their_marks():
    assert split_words("हिन्दी फ़िल्म, ภาษาไทย") == ["हिन्दी", "फ़िल्म", "ภาษาไทย"]
    # One spelling each, composed or not, full width or not; soft hyphens show nothing.
    assert split_words("cafe\u0301") == split_words("CAFÉ") == ["café"]
    assert split_words("ＤＯＧ cat\u00adfish") == ["dog", "catfish"]
    assert split_words("schön") != split_words("schon")


def test_a_prompt_without_words_is_not_no_prompt(encoder):
    assert split_words("a 🐟🐟!") == ["a", "🐟", "🐟"]
    assert split_words("❤\ufe0f") == split_words("❤") == ["❤"]
    assert split_words(" ?! ") == ["?", "!"]
    assert split_words("\udcff\x00 \n") == []
    _, lens = encoder.encode(["🐟", "...", "", " \t"])
    assert lens == [1, 3, 0, 0]


def test_ragged_and_deterministic(encoder):
    text, lens = encoder.encode(["a red ball", "", "one two three four five six"])
    assert lens == [3, 0, 5] and text.shape == (8, 64) and text.dtype == torch.float32
    again, _ = HashedTextEncoder(HashedTextConfig(dim=64, max_tokens=5)).encode(["A red, ball!"])
    assert torch.equal(again, text[:3])
    empty, lens = encoder.encode(["", "  \n"])
    assert lens == [0, 0] and empty.shape == (0, 64)


def test_spelling_is_nearness(encoder):
    words, _ = encoder.encode(["bicycle", "bicycles", "quartz"][:1])
    other, _ = encoder.encode(["bicycles"])
    far, _ = encoder.encode(["quartz"])
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(words, other) > 0.25
    assert abs(cosine(words, far)) < 0.45
    order = encoder.encode(["dog bites man"])[0], encoder.encode(["man bites dog"])[0]
    assert not torch.equal(*[t.sort(0).values for t in order])


def test_bad_sizes_are_refused():
    with pytest.raises(ConfigError, match="multiple of 4, at least 8, got 10"):
        HashedTextConfig(dim=10)
