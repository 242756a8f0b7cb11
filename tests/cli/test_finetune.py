"""Wiring tier: what `vfm finetune` takes from a checkpoint, and what may be given over it."""

import pytest
import yaml

from cli.main import main
from tests.training.runs import small_config, train


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    from tests.training.runs import make_curated

    curated = make_curated(tmp_path_factory.mktemp("curated"))
    return curated, train(small_config(curated, tmp_path_factory.mktemp("s") / "run", steps=2))


def resolved(text: str) -> dict:
    return yaml.safe_load(text.split("\n---\n")[0])


def test_network_tokenizer_and_shapes_are_the_checkpoints(start, tmp_path, capsys):
    curated, run = start
    words = [f"checkpoint={run}", f"data.path={curated}", f"output={tmp_path / 'out'}"]
    assert main(["finetune", *words, "lora.rank=3", "steps=2", "dry_run=true"]) == 0
    config = resolved(capsys.readouterr().out)
    assert config["model"]["hidden_size"] == 32 and config["data"]["size"] == [64, 48]
    assert config["lora"]["rank"] == 3 and config["text"]["dim"] == 16
    assert config["tokenizer"]["path"].endswith("step-00000002/tokenizer")
    assert not (tmp_path / "out").exists()
    quick = ["steps=1", "wandb.mode=disabled", "optimizer.warmup_steps=0"]
    assert main(["finetune", *words, "lora.rank=3", "lora.alpha=6", *quick]) == 0
    adapter = tmp_path / "out/checkpoints/step-00000001/adapter"
    assert (adapter / "adapter_model.safetensors").is_file()
    video = tmp_path / "a.mp4"
    words = [f"checkpoint={run}", "prompt=x", f"output={video}", "sampler.num_steps=1"]
    assert main(["generate", *words, f"lora={adapter}"]) == 0 and video.is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["output=out"], "the checkpoint is missing; for example: vfm finetune checkpoint=run"),
        (["checkpoint=nowhere"], "nowhere"),
        (["checkpoint=RUN", "data.path=x"], "output has no value"),
        (
            ["checkpoint=RUN", "lora.ranks=3"],
            "unknown key 'lora.ranks' (did you mean 'lora.rank'",
        ),
    ],
)
def test_what_cannot_be_is_one_line(words, said, start, capsys):
    words = [word.replace("RUN", str(start[1])) for word in words]
    assert main(["finetune", *words]) == 2
    assert said in capsys.readouterr().err
