"""Gloo tier: a pretraining run over ranks against the same run in one process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from safetensors.torch import load_file

from common.errors import ConfigError
from models.dit import DiTConfig
from models.moviegen import MovieGenConfig
from models.stdit import STDiTConfig
from parallel import checkpoint
from parallel.topology import Topology
from tests.dataloading.folder import Clip, make_folder
from tests.training.runs import make_curated, small_config, train
from training.config import ParallelConfig, TrainConfig
from training.metrics import read_metrics
from training.trainer import Trainer

NETWORKS = {
    "dit": DiTConfig(hidden_size=32, num_layers=2, num_heads=4),
    "stdit": STDiTConfig(hidden_size=32, num_layers=2, num_heads=4, zigzag=True),
    "moviegen": MovieGenConfig(
        hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_size=64
    ),
}


@pytest.fixture(scope="module")
def curated(tmp_path_factory) -> Path:
    return make_curated(tmp_path_factory.mktemp("curated"))


def run_here(config: TrainConfig) -> None:
    """One rank's part of a run, over all ranks of this world."""
    parallel = config.parallel
    size = dist.get_world_size()
    model = parallel.ulysses * parallel.ring
    topology = Topology(
        rank=dist.get_rank(),
        world_size=size,
        ulysses=parallel.ulysses,
        ring=parallel.ring,
        dp=size // model,
    )
    Trainer(config, "x: 1\n", topology, Console(quiet=True)).run()


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.found(run / "checkpoints")[-1]
    return load_file(newest / "model.safetensors")


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(run) if "loss" in record]


@pytest.mark.parametrize(
    ("network", "ulysses", "ring", "world"),
    [
        ("dit", 1, 2, 2),
        ("dit", 2, 1, 4),
        ("dit", 1, 1, 2),
        ("stdit", 2, 2, 4),
        ("moviegen", 1, 2, 4),
    ],
)
def test_a_run_over_ranks_is_the_run_of_one(
    worlds, curated, tmp_path, network, ulysses, ring, world
):
    config = small_config(
        curated, tmp_path, model=NETWORKS[network], packs_per_step=2, steps=4, checkpoint_every=4
    )
    alone = train(replace(config, output=str(tmp_path / "alone")))
    over = replace(
        config,
        output=str(tmp_path / "over"),
        parallel=ParallelConfig(ulysses=ulysses, ring=ring, timeout_s=60, log_traffic=True),
    )
    worlds[world].run(run_here, over)
    here = tmp_path / "over"
    assert losses(here) == pytest.approx(losses(alone), rel=1e-5)
    expected = weights(alone)
    for name, tensor in weights(here).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5)
    records = [r for r in read_metrics(here) if "loss" in r]
    mine = [r for r in read_metrics(alone) if "loss" in r]
    for name in ("num_tokens", "num_samples", "lr"):
        assert [r[name] for r in records] == [r[name] for r in mine]
    sent = records[0]["sent_bytes"]
    numbers = sum(tensor.numel() for tensor in expected.values())
    assert sent["all_reduce"] == 2 * 4 * numbers * (world - 1) // world
    assert any(name.startswith(("ring", "ulysses")) for name in sent) == (ulysses * ring > 1)


def test_a_run_goes_on_over_other_ranks(world2, curated, tmp_path):
    config = small_config(curated, tmp_path / "alone", packs_per_step=2, steps=4)
    train(config)
    over = replace(config, output=str(tmp_path / "over"), parallel=ParallelConfig(ring=2))
    world2.run(run_here, replace(over, steps=2))
    world2.run(run_here, replace(over, steps=3, parallel=ParallelConfig()))
    train(replace(over, parallel=ParallelConfig()))
    assert losses(tmp_path / "over") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


def test_each_layer_goes_over_the_ranks_in_its_own_way(world4, curated, tmp_path):
    config = small_config(
        curated, tmp_path, model=replace(NETWORKS["dit"], num_layers=3), steps=2, checkpoint_every=2
    )
    alone = train(replace(config, output=str(tmp_path / "alone")))
    parallel = ParallelConfig(
        ulysses=2, ring=2, comm=["a2a+p2p", "all_gather"], timeout_s=60, log_traffic=True
    )
    over = replace(config, output=str(tmp_path / "over"), parallel=parallel)
    world4.run(run_here, over)
    assert losses(tmp_path / "over") == pytest.approx(losses(alone), rel=1e-5)
    # Two layers of three exchange heads and go around a ring of two; one gathers from all four.
    (sent, *_) = (r["sent_bytes"] for r in read_metrics(tmp_path / "over") if "loss" in r)
    assert {"ulysses.qkv", "ring.kv", "gather.kv"} < set(sent)


def test_transformer_engine_is_refused_where_it_is_missing(world2, curated, tmp_path):
    parallel = ParallelConfig(ring=2, attention="transformer_engine")
    config = small_config(curated, tmp_path / "run", parallel=parallel)
    for told in world2.run(refusal, config):
        assert "attention by TransformerEngine needs its package" in told


def refusal(config: TrainConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        run_here(config)
    return str(caught.value)


def test_packs_that_cannot_be_shared_out_are_refused(world2, curated, tmp_path):
    config = small_config(curated, tmp_path / "run", packs_per_step=3)
    for told in world2.run(refusal, config):
        assert "packs_per_step=3 cannot be shared out among 2 data-parallel ranks" in told
    assert not (tmp_path / "run").exists()


def stopped_on_one_rank(config: TrainConfig) -> int:
    """The step after which a run ends that one rank alone was told to stop, at its second step."""
    topology = Topology(rank=dist.get_rank(), world_size=2, dp=2)
    trainer = Trainer(config, "x: 1\n", topology, Console(quiet=True))
    inner = trainer._step

    def step(batches):
        trainer.stop.asked = trainer.stop.asked or (dist.get_rank() == 1 and trainer.step == 1)
        return inner(batches)

    trainer._step = step
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    return trainer.step


def test_all_ranks_stop_after_the_same_step(world2, curated, tmp_path):
    config = small_config(curated, tmp_path / "run", packs_per_step=2, steps=5)
    assert world2.run(stopped_on_one_rank, config) == [2, 2]
    assert [p.name for p in checkpoint.found(tmp_path / "run" / "checkpoints")] == ["step-00000002"]


def test_clips_that_any_rank_could_not_read_are_in_the_checkpoint(world2, tmp_path):
    clips = [
        Clip(clip_id=f"clip{i:02d}", num_frames=24, fps=12.0, video=b"" if i % 2 else None)
        for i in range(16)
    ]
    folder = make_folder(tmp_path / "curated", {"a": clips[:8], "b": clips[8:]})
    config = small_config(folder, tmp_path / "alone", packs_per_step=2, steps=2)
    train(config)
    world2.run(run_here, replace(config, output=str(tmp_path / "over")))
    alone, over = (
        checkpoint.read_state(checkpoint.found(tmp_path / run / "checkpoints")[-1])["loader"]
        for run in ("alone", "over")
    )
    assert over["skipped"] == alone["skipped"]
    assert 1 < len(over["skipped"]) < 8
