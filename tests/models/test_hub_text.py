"""Wiring tier: text encoders of transformers, tiny, random weights, behind our interface."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from common.errors import ConfigError, DataError
from models.text.choose import make_text_encoder, text_config_from_json
from models.text.hub import HubTextConfig, HubTextEncoder

CPU = torch.device("cpu")
SPECIAL = ["<pad>", "</s>", "<unk>"]
WORDS = [
    *SPECIAL,
    *["a", "blue", "cat", "dog", "jumps", "moon", "over", "quickly", "red", "runs", "the"],
]
CAPTIONS = [
    "a red dog runs",
    "the moon",
    "",
    "a blue cat jumps over the moon quickly",
    "  ",
    "cat",
]


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    t5: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 32,
        "num_heads": 4,
        "num_layers": 2,
        "num_decoder_layers": 1,
    }
    small: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    if kind == "t5":
        return transformers.T5EncoderModel(transformers.T5Config(**t5))
    if kind == "umt5":
        return transformers.UMT5EncoderModel(transformers.UMT5Config(**t5))
    if kind == "clip":
        text = transformers.CLIPTextConfig(**small, max_position_embeddings=6, eos_token_id=1)
        return transformers.CLIPTextModel(text)
    return transformers.LlamaModel(transformers.LlamaConfig(**small, num_key_value_heads=2))


KINDS = ["t5", "umt5", "clip", "llama"]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As transformers saves weights and tokenizer."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    kept = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    model_of(request.param).save_pretrained(tmp_path / request.param)
    kept.save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


def loaded(folder: Path, **settings: Any) -> HubTextEncoder:
    encoder = make_text_encoder(HubTextConfig(path=str(folder), **settings), CPU)
    assert isinstance(encoder, HubTextEncoder)
    return encoder


def test_a_caption_is_the_same_alone_and_among_others(folder):
    encoder = loaded(folder)
    text, lens = encoder.encode(CAPTIONS)
    most = 6 if folder.name == "clip" else 512
    assert lens == [min(n, most) for n in (5, 3, 0, 9, 0, 2)] and encoder.dim == 16
    assert text.dtype == torch.float32 and text.shape == (sum(lens), 16)
    for caption, part in zip(CAPTIONS, text.split(lens), strict=True):
        alone, _ = loaded(folder).encode([caption])
        torch.testing.assert_close(part, alone, atol=1e-5, rtol=0)


def test_it_is_what_transformers_gives(folder):
    text, lens = loaded(folder).encode(CAPTIONS[:1])
    ids = torch.tensor([[WORDS.index(w) for w in ("a", "red", "dog", "runs", "</s>")]])
    with torch.no_grad():
        expected = model_of(folder.name).eval()(input_ids=ids).last_hidden_state[0]
    assert lens == [5]
    torch.testing.assert_close(text, expected, atol=1e-5, rtol=0)


def test_words_come_together(folder):
    """No token's state is that of the word alone: there is attention, and the layers differ."""
    encoder = loaded(folder)
    one, two = (encoder.encode([c])[0] for c in ("red dog", "blue dog"))
    assert (one[1] - two[1]).abs().max() > 1e-3
    before, _ = loaded(folder, layer=-2).encode(["red dog"])
    assert before.shape == one.shape and (before - one).abs().max() > 1e-3


def test_embeddings_are_kept(folder):
    encoder = loaded(folder)
    first, _ = encoder.encode(CAPTIONS)
    encoder.model.forward = None  # Nothing goes through it again.
    again, _ = encoder.encode(list(reversed(CAPTIONS)))
    assert torch.equal(again[:2], first[-2:])
    with pytest.raises(TypeError):
        encoder.encode(["a new one"])
    small = loaded(folder, cache_bytes=4 * 16 * 4)
    small.encode(CAPTIONS)
    assert sum(t.nbytes for t in small._cache._kept.values()) <= 4 * 16 * 4


def test_long_captions_are_cut(folder):
    _, lens = loaded(folder, max_tokens=4).encode(["a red dog runs over the moon", "cat"])
    assert lens == [4, 2]


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = HubTextConfig(path=str(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"no text encoder can be read from text.path=.*nothing"):
        make_text_encoder(config, CPU)
    with pytest.raises(ConfigError, match="text.layer counts from the end"):
        HubTextConfig(path="x", layer=2)
    assert text_config_from_json({"kind": "hub", "path": "x"}) == HubTextConfig(path="x")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="needs the package transformers"):
        make_text_encoder(config, CPU)


def test_a_layer_that_is_not_there_is_refused(folder):
    with pytest.raises(ConfigError, match="has 2 layers: -3 to -1"):
        loaded(folder, layer=-4)


def test_on_a_cpu_no_bit_depends_on_which_captions_are_encoded_together():
    """A run that goes on has an empty cache, and so other groups than one that was not stopped."""
    torch.manual_seed(0)
    shape = transformers.T5Config(
        vocab_size=32, d_model=512, d_kv=64, d_ff=1024, num_layers=1, num_heads=8
    )
    model = transformers.T5EncoderModel(shape)

    def ids(captions: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(c) - ord("a") for c in caption] for caption in captions]}

    def encoder() -> HubTextEncoder:
        return HubTextEncoder(model, ids, HubTextConfig(path="unused"))

    captions = [letter * n for n in (1, 2) for letter in "abcdefghi"]
    together, _ = encoder().encode(captions)
    alone = [encoder().encode([caption])[0] for caption in captions]
    assert torch.equal(together, torch.cat(alone))
