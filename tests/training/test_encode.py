"""Wiring tier. Encoded windows: what they hold, resuming, damage, and training on them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load, save

from cli.commands import data, encode
from common.errors import ConfigError, DataError, MediaError
from dataloading.config import Compression, LoaderConfig
from dataloading.encoded import EncodedReader
from dataloading.indexing import index_folder
from dataloading.loader import PackedLoader
from dataloading.samples import SampleLoader
from dataloading.schema import read_manifest
from models.encoding import Encoding
from models.text.hashed import HashedTextConfig, HashedTextEncoder
from models.tokenizers.causal import CausalConfig
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.load import load_tokenizer
from models.tokenizers.recipe import RecipeConfig
from tests.dataloading.folder import Clip, make_folder
from tests.training.runs import make_curated, small_config, train
from training.encode import EncodeConfig, EncodeRun, EncodeTokenizer
from training.step import prepare

WINDOWS = dict(num_frames=[1, 5], size=[64, 48], resize="crop", fps=12.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A curated folder and a tokenizer."""
    root = tmp_path_factory.mktemp("encode")
    videos = [torch.randint(0, 255, (5, 48, 64, 3), dtype=torch.uint8) for _ in range(2)]
    recipe = RecipeConfig(steps=2, lr=4e-3, l1=0.0, l2=1.0, perceptual=0.0, kl=0.0)
    shape = CausalConfig(channels=4, widths=[8], decoder_blocks=1)
    (root / "tokenizer").mkdir()
    fit_tokenizer(shape, videos, recipe, seed=1).save(root / "tokenizer")
    return make_curated(root / "curated"), root / "tokenizer"


def run(folders: tuple[Path, Path], output: Path, **changes: Any) -> EncodeRun:
    values: dict[str, Any] = {
        "folder": str(folders[0]),
        "output": str(output),
        "tokenizer": EncodeTokenizer(path=str(folders[1])),
        "text": HashedTextConfig(dim=16),
        "windows_per_shard": 3,
        **WINDOWS,
        **changes,
    }
    return EncodeRun(EncodeConfig(**values), Console(quiet=True))


def loader(folder: Path, split: str = "train", **changes: Any) -> PackedLoader:
    values: dict[str, Any] = {**WINDOWS, "token_budget": 64, **changes}
    return PackedLoader(LoaderConfig(path=str(folder), **values), Compression(), split=split)


def files(folder: Path) -> dict[str, bytes]:
    paths = [p for p in folder.rglob("*") if p.is_file() and p.parent.name != "report"]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


@pytest.fixture(scope="module")
def encoded(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("encoded") / "out"
    made = run(folders, output, windows_per_clip=2).run()
    assert not made.failed
    assert made.windows == 4 * (2 * 2 + 1), "each clip: 2 lengths at 2 places, and one held out"
    return output


def test_batches_bring_what_encoding_the_frames_would_give(
    folders: tuple[Path, Path], encoded: Path
) -> None:
    tokenizer, text = load_tokenizer(folders[1]), HashedTextEncoder(HashedTextConfig(dim=16))
    encoding = Encoding(tokenizer, text, (1, 2, 2), 0.5, torch.device("cpu"))
    frames = {}
    for batch in loader(folders[0], split="val"):
        for name, video in zip(batch.sample_ids, batch.frames or [], strict=True):
            frames[name.partition(":")[0]] = video
    seen = 0
    for batch in loader(encoded, split="val"):
        assert batch.frames is None
        for key, latents in zip(batch.sample_ids, batch.latents or [], strict=True):
            expected = tokenizer.encode(frames[key.partition("-")[0]])
            torch.testing.assert_close(latents, expected, rtol=0, atol=0)
            seen += 1
        dropped = [False] * batch.num_samples
        prepared = prepare(batch, encoding, dropped)
        assert prepared.clean.shape[0] == batch.num_tokens
        torch.testing.assert_close(prepared.text, text.encode(batch.captions)[0], rtol=0, atol=0)
        assert prepare(batch, encoding, [True] * batch.num_samples).text.shape == (0, 16)
    assert seen == 4


def test_an_epoch_is_every_window_once_and_resumes(encoded: Path) -> None:
    source = loader(encoded)
    seen: list[str] = []
    with source:
        for batch in source:
            seen += batch.sample_ids
            if len(seen) >= 64:
                break
    first = [key for key in seen if key.endswith(":0")]
    assert len(first) == len(set(first)) == 16
    state = json.loads(json.dumps(source.state_dict()))
    again = loader(encoded)
    again.load_state_dict(state)
    with source, again:
        for _ in range(3):
            one, other = next(source), next(again)
            assert one.sample_ids == other.sample_ids
            assert one.latents is not None and other.latents is not None
            assert all(map(torch.equal, one.latents, other.latents))


def test_a_killed_run_goes_on_and_the_bytes_are_those_of_an_unbroken_one(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folders, tmp_path / "whole").run()
    broken = run(folders, tmp_path / "broken")
    encode_shard, calls = EncodeRun._encode, []

    def killed(self: EncodeRun, path: str, jobs: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode_shard(self, path, jobs)

    monkeypatch.setattr(EncodeRun, "_encode", killed)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert not (tmp_path / "broken/shards/manifest.json").exists()
    done = list(calls[:2])
    calls.append("")
    run(folders, tmp_path / "broken", num_threads=1).run()
    assert not set(done) & set(calls[4:]), "what was done is not done again"
    assert files(tmp_path / "whole") == files(tmp_path / "broken")
    with pytest.raises(ConfigError, match="other data or settings"):
        run(folders, tmp_path / "whole", seed=4)


def test_unreadable_clips_are_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    clips = [
        Clip(clip_id="good", num_frames=24, fps=12.0),
        Clip(clip_id="bad", num_frames=24, fps=12.0, video=b"no video at all"),
    ]
    curated = make_folder(tmp_path / "curated", {"a": clips})
    argv = [
        str(curated),
        f"tokenizer.path={folders[1]}",
        f"output={tmp_path / 'out'}",
        "num_frames=[1,5]",
        "size=[64,48]",
        "fps=12",
    ]
    assert encode.run(argv) == 1
    failed = [json.loads(line) for line in (tmp_path / "out/failed.jsonl").open()]
    assert len(failed) == 3
    assert all(f["window"].startswith("bad-") and f["detail"] for f in failed)
    assert sum(s.num_clips for s in read_manifest(tmp_path / "out/shards").shards) == 3
    with pytest.raises(DataError, match="more than max_bad_windows"):
        run((curated, folders[1]), tmp_path / "few", max_bad_windows=2).run()


def test_tensors_that_are_not_what_they_should_be_are_named(encoded: Path) -> None:
    source = loader(encoded)
    reader = source._make_reader()
    assert isinstance(reader, EncodedReader)
    first = source._planner().next_pack()
    assert first is not None
    sample = first.samples[0]
    content, said = reader.fetch(sample)
    good = load(content)
    latents = good["latents"]
    for changed, reason in (
        ({**good, "latents": latents[:, :, 1:]}, "wrong_shape"),
        ({**good, "latents": torch.full_like(latents, float("nan"))}, "not_finite"),
        ({**good, "text": good["text"] / 0.0}, "not_finite"),
        ({"latents": latents}, "missing_member"),
    ):
        with pytest.raises(MediaError, match="window") as told:
            reader.decode(sample, save({k: v.contiguous() for k, v in changed.items()}), said)
        assert told.value.reason == reason
    with pytest.raises(MediaError) as told:
        reader.decode(sample, b"\x80\x04pickle", said)
    assert told.value.reason == "bad_latents"


def test_other_settings_than_those_encoded_are_refused(
    encoded: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"data.size is \[32, 32\], it holds \[64, 48\]"):
        loader(encoded, size=[32, 32])
    with pytest.raises(ConfigError, match=r"data.num_frames is \[9\], it holds \[1, 5\]"):
        loader(encoded, num_frames=[9])
    with pytest.raises(ConfigError, match="encoded windows, which have no actions"):
        loader(encoded, action_dim=2)
    with pytest.raises(DataError, match="cannot be blended"):
        loader(encoded, blend={str(folders[0]): 1.0})
    with pytest.raises(DataError, match="holds encoded windows"):
        run((encoded, folders[1]), tmp_path / "x")
    config = small_config(encoded, tmp_path / "run", text=HashedTextConfig(dim=8))
    with pytest.raises(ConfigError, match="text.dim is 8, it was encoded with 16"):
        train(config)


def test_training_takes_latents_and_touches_no_tokenizer(
    encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("frames were encoded")

    monkeypatch.setattr(Encoding, "tokens", never)
    output = train(small_config(encoded, tmp_path / "run"))
    losses = [json.loads(line) for line in (output / "metrics.jsonl").open()]
    assert max(row["step"] for row in losses) == 6
    assert any("val_loss" in row for row in losses)
    assert data.run(["info", str(encoded)]) == 0
    assert "20" in capsys.readouterr().out
    assert data.run(["verify", str(encoded)]) == 0
    assert "20 clips" in capsys.readouterr().out
    assert index_folder(encoded).num_samples == 20
    parts = next(iter(SampleLoader(encoded, None)))
    assert set(parts) == {"__key__", "safetensors", "json"}
    assert asdict(read_manifest(encoded / "shards"))["encoded"]["data"]["size"] == [64, 48]
