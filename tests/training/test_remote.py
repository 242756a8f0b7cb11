"""Wiring tier. Training from an object store, a real S3 server in this process. No network."""

import json
from pathlib import Path

import pytest

from cli.config import load
from common.store_path import StorePath
from tests.common.stores import s3
from tests.training.runs import make_curated, small_config, train
from training.config import TrainConfig
from training.encode import EncodeConfig


def test_the_command_line_takes_a_url() -> None:
    words = ["data.path=s3://films/curated", "output=run"]
    assert load("pretrain", words, TrainConfig).config.data.path == "s3://films/curated"
    words = ["s3://films/curated", "tokenizer.path=t", "output=o"]
    assert load("encode", words, EncodeConfig).config.folder == "s3://films/curated"


def test_training_from_a_store_is_that_from_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curated = make_curated(tmp_path / "curated")

    def losses(path: Path | str, output: str) -> list[float]:
        config = small_config(Path("x"), tmp_path / output, steps=2)
        config.data = type(config.data)(**{**vars(config.data), "path": str(path)})
        rows = [json.loads(line) for line in (train(config) / "metrics.jsonl").open()]
        return [row["loss"] for row in rows if "loss" in row]

    local = losses(curated, "local")
    with s3(monkeypatch) as address:
        import urllib.request

        request = urllib.request.Request(f"{address}/films", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        root = StorePath("s3://films/curated")
        for path in curated.rglob("*"):
            if path.is_file():
                (root / path.relative_to(curated).as_posix()).write_bytes(path.read_bytes())
        assert losses(str(root), "remote") == local
    assert len(local) == 2
