"""The training loop: resumes by itself, stops cleanly, and computes the same whatever happens.

Everything random is a function of (seed, step, sample), the order of samples is the loader's
state, and the rest lies in the checkpoint. A run that was killed and continued gives the same
weights and losses as one that was not: on a CPU bit for bit, on a GPU up to the order in which its
kernels add.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.errors import ConfigError, VfmError
from common.media import write_video
from common.storage import write_atomic
from dataloading.batch import Batch
from dataloading.loader import PackedLoader
from dataloading.state import merge_skipped
from inference.generate import generate
from inference.loading import Generator
from inference.shape import VideoShape
from models.encoding import choose_device
from models.initialize import initialize
from models.lora import add_lora, save_adapter
from models.objectives.choose import make_objective
from models.pack import Prefix
from models.text.choose import make_text_encoder
from models.tokenizers.base import mean_psnr_db
from models.tokenizers.load import load_tokenizer
from parallel import checkpoint
from parallel.ema_snapshots import save_snapshot
from parallel.topology import Topology
from training.config import TrainConfig
from training.ema import EMA, PowerEMA
from training.metrics import Metrics, NoMetrics
from training.optimizer import (
    expected_tensors,
    learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from training.prefix import draw_prefix
from training.progress import RunProgress
from training.ranks import Ranks
from training.run_folder import RunFolder
from training.setup import (
    check_discrete,
    check_lora,
    check_reach,
    compression_of,
    get_tokenizer,
    make_spec,
    start_from,
)
from training.step import Prepared, add_gradients, drop_text, num_loss_tokens, prepare
from training.stop import StopRequest
from training.validation import validate


class TrainingError(VfmError):
    """Training cannot go on, though the request was well formed."""


class Trainer:
    """One pretraining run in `config.output`.

    Raises `ConfigError` or `DataError` before any work where the request cannot be carried out.
    """

    def __init__(
        self, config: TrainConfig, config_yaml: str, topology: Topology, console: Console
    ) -> None:
        if config.packs_per_step % topology.dp:
            raise ConfigError(
                f"packs_per_step={config.packs_per_step} cannot be shared out among "
                f"{topology.dp} data-parallel ranks: give a multiple of {topology.dp}"
            )
        self.config, self.config_yaml, self.console = config, config_yaml, console
        self.device = choose_device(config.device)
        check_discrete(config)
        check_lora(config)
        self.folder = RunFolder(Path(config.output))
        self.resume_from = self.folder.resume_point(config)
        compression = compression_of(config, self.resume_from)
        self.objective = make_objective(config.objective)
        self.ranks = Ranks.join(topology, config.parallel, self.device)
        self.loader = PackedLoader(
            config.data,
            compression,
            split="train",
            dp_rank=topology.dp_rank,
            dp_size=topology.dp,
            peers=self.ranks.peers,
        )
        check_reach(config.model, self.loader)
        # Kept for the whole run, so that held-out windows are decoded once.
        self.held_out = PackedLoader(config.data, compression, split="val")
        # Here, since what it lacks must be told before a tokenizer is fitted.
        self.text = make_text_encoder(config.text, self.device)
        self.num_held_out = int(self.held_out.describe()["samples_per_epoch"])
        self.stop = StopRequest()

    def run(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Trains up to `config.steps`; a finished run is left as it is.

        Args:
            on_start: called once the folder is this run's own and nothing is left to refuse.

        Raises `KeyboardInterrupt` where it was stopped before that.
        """
        # Once rank 0 writes, nobody may still look for the checkpoint to go on from.
        self.ranks.wait()
        with (
            self.folder.lock(self.resume_from) if self.ranks.first else nullcontext(),
            self.loader,
            self.held_out,
            RunProgress(self.console) as self.progress,
        ):
            self.metrics = self._open_metrics()
            try:
                on_start()
                self._build()
                if self.ranks.first and not self.num_held_out:
                    self.progress.note(self._nothing_held_out())
                if self.step == 0 and self.ranks.first:
                    self._first_look()
                self.ranks.wait()
                with self.stop.signals(self.console):
                    self._loop()
            finally:
                self.metrics.close()
        if self.step < self.config.steps:
            raise KeyboardInterrupt

    def _open_metrics(self) -> Metrics:
        if not self.ranks.first:
            return NoMetrics()
        step = checkpoint.read_state(self.resume_from)["step"] if self.resume_from else -1
        return Metrics(self.folder.path, self.config.wandb, asdict(self.config), step)

    def _nothing_held_out(self) -> str:
        return (
            "validation: nothing is held out, since no clip has room for three windows of "
            f"data.num_frames={self.config.data.num_frames}; no validation, and no samples"
        )

    def _build(self) -> None:
        config = self.config
        if self.resume_from is None and config.tokenizer.path is None:
            self.progress.note(f"fitting the tokenizer, {config.tokenizer.fit_steps} steps")
        if self.ranks.first:
            with self.progress.task("tokenizer", config.tokenizer.fit_steps) as on_step:
                tokenizer = get_tokenizer(
                    config, self.folder.tokenizer, self.resume_from, self.device, on_step
                )
        self.ranks.wait()
        if not self.ranks.first:
            kept = self.resume_from / "tokenizer" if self.resume_from else self.folder.tokenizer
            tokenizer = load_tokenizer(kept, self.device)
        self.spec = make_spec(config, self.loader)
        self.encoding = self.spec.encoding(tokenizer, self.device, self.text)
        self.network = self.spec.network(self.encoding, self.ranks.attention(config.model))
        initialize(self.network, config.seed)
        if config.checkpoint is not None and self.resume_from is None:
            start_from(self.network, Path(config.checkpoint))
        self.averaged = self.spec.network(self.encoding).eval()
        if config.lora is not None:
            for network in (self.network, self.averaged):
                add_lora(network, config.lora, config.seed)
        self.averaged.requires_grad_(False)
        self.parameters = dict(self.network.named_parameters())
        self.trained = {n: p for n, p in self.parameters.items() if p.requires_grad}
        self.optimizer = make_optimizer(config.optimizer, self.network)
        self.ema = EMA(self.network.named_parameters(), config.ema_decay)
        self.power_ema = PowerEMA(self.network.named_parameters(), config.power_ema.widths)
        self.step = 0
        if self.resume_from is not None:
            self._restore(self.resume_from)
        self.saved_step = self.step

    def _restore(self, path: Path) -> None:
        state = checkpoint.read_state(path)
        self.step = state["step"]
        model = checkpoint.read_tensors(path, "model", self.parameters)
        optimizer = checkpoint.read_tensors(path, "optimizer", expected_tensors(self.trained))
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(model[name])
        load_optimizer_tensors(self.optimizer, self.trained, optimizer)
        self.ema.load(checkpoint.read_tensors(path, "ema", self.ema.shadow))
        if self.power_ema.tracks:
            tracks = self.power_ema.tensors()
            self.power_ema.load(checkpoint.read_tensors(path, "power_ema", tracks))
        self.loader.load_state_dict(state["loader"])
        self.console.print(f"goes on from step {self.step} ({path})")

    def _first_look(self) -> None:
        """What the tokenizer can do, and how an untrained network does, on held-out windows."""
        videos = [v for b in self._validation_packs() for v in b.frames or []]
        if videos:
            psnr = mean_psnr_db(self.encoding.tokenizer, videos)
            self.metrics.log(0, tokenizer_psnr_db=psnr, tokenizer_windows=len(videos))
        self._validate()

    def _loop(self) -> None:
        config, asked = self.config, self._agree_to_stop()
        packs, per_rank = iter(self.loader), config.packs_per_step // self.ranks.topology.dp
        with self.progress.training(self.step, config.steps) as report:
            while self.step < config.steps and not asked:
                began = time.perf_counter()
                batches = list(islice(packs, per_rank))
                loss, grad_norm, lr = self._step(batches)
                num_tokens, num_samples = self._whole(
                    sum(b.num_tokens for b in batches), sum(b.num_samples for b in batches)
                )
                self.step += 1
                tokens_per_s = num_tokens / (time.perf_counter() - began)
                self.metrics.log(
                    self.step,
                    loss=loss,
                    grad_norm=grad_norm,
                    lr=lr,
                    num_tokens=num_tokens,
                    num_samples=num_samples,
                    tokens_per_s=round(tokens_per_s, 1),
                    **self._traffic(),
                )
                report(self.step, loss, tokens_per_s)
                self._periodically()
                asked = self._agree_to_stop()
            # Whenever the wish to stop came, no step that was done is lost.
            if self.saved_step < self.step:
                self._save(self._loader_state())

    def _agree_to_stop(self) -> bool:
        """Ranks hear of a wish to stop at different times, and must stop after the same step."""
        (asking,) = self.ranks.total([float(self.stop.asked)], per_pack=False)
        return asking > 0

    def _whole(self, *counts: int) -> list[int]:
        """What is counted in this rank's packs, over those of all ranks."""
        return [round(n) for n in self.ranks.total([float(n) for n in counts], per_pack=True)]

    def _traffic(self) -> dict[str, Any]:
        traffic = self.ranks.traffic
        sent = {name: num_bytes for name, (_, num_bytes) in traffic.by_name().items()}
        traffic.clear()
        return {"sent_bytes": sent} if self.config.parallel.log_traffic else {}

    def _step(self, batches: list[Batch]) -> tuple[float, float, float]:
        """One optimizer step: loss before it, gradient norm before clipping, learning rate."""
        config, step = self.config, self.step
        lr = learning_rate(config.optimizer, step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        prefixes = [draw_prefix(config.prefix, config.seed, step, b) for b in batches]
        (num_tokens,) = self._whole(num_loss_tokens(batches, prefixes))
        loss = add_gradients(
            self.network,
            self.objective,
            map(self._prepare, batches, prefixes),
            num_tokens=num_tokens,
            seed=config.seed,
            step=step,
            autocast=self._autocast(),
        )
        for parameter in self.trained.values():
            # The null token has no gradient in a step that drops no text; the optimizer's state
            # must not depend on when it first had one.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([p.grad for p in self.network.parameters() if p.grad is not None])
        (loss,) = self.ranks.total([loss], per_pack=False)
        grad_norm = float(
            torch.nn.utils.clip_grad_norm_(
                self.network.parameters(), config.optimizer.clip_grad_norm
            )
        )
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            ids = [i for b in batches for i in b.sample_ids]
            raise TrainingError(
                f"step {step + 1}: loss {loss}, gradient norm {grad_norm} "
                f"(samples {', '.join(ids[:8])}); lower optimizer.lr={config.optimizer.lr} or "
                f"raise optimizer.warmup_steps={config.optimizer.warmup_steps}, and run the same "
                "command into another output"
            )
        self.optimizer.step()
        self.ema.update(self.parameters, step + 1)
        self.power_ema.update(self.parameters, step + 1)
        return loss, grad_norm, lr

    def _prepare(self, batch: Batch, prefix: Prefix | None) -> Prepared:
        config = self.config
        ids = batch.sample_ids
        dropped = drop_text(config.seed, self.step, ids, config.text_dropout)
        actionless = drop_text(config.seed, self.step, ids, config.action_dropout, "action_dropout")
        share = self.ranks.share(config.model)
        return prepare(batch, self.encoding, dropped, share, prefix, actionless)

    def _autocast(self) -> torch.autocast:
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _periodically(self) -> None:
        saving = self.step % self.config.checkpoint_every == 0
        # Before the first rank goes about what the others wait long for.
        loader = self._loader_state() if saving else None
        if self.ranks.first:
            self._look()
        # Last of all, so that what a checkpoint's step has logged is whole when it is found.
        if loader is not None:
            self._save(loader)
        self.ranks.wait()

    def _look(self) -> None:
        config, last = self.config, self.step == self.config.steps
        if last or self.step % config.validation.every == 0:
            self._validate()
        if config.samples.every and (last or self.step % config.samples.every == 0):
            self._sample()
        tracks = self.power_ema.tracks
        if tracks and (last or self.step % config.power_ema.every == 0):
            save_snapshot(self.folder.path, self.step, tracks)

    def _validation_packs(self) -> Iterator[Batch]:
        return islice(self.held_out, self.config.validation.max_packs)

    def _validate(self) -> None:
        self.ema.copy_to(self.averaged)
        sigmas, prefix = self.config.validation.sigmas, self.config.prefix
        packs = self._validation_packs()
        with self._autocast():
            result = validate(self.averaged, self.objective, self.encoding, packs, sigmas, prefix)
        if result is not None:
            per_sigma = {f"{s:g}": v for s, v in result.per_sigma.items()}
            self.metrics.log(self.step, val_loss=result.loss, val_per_sigma=per_sigma)
            measure = self.objective.measure
            self.progress.note(f"step {self.step}: held-out {measure} {result.loss:.4f}")

    def _sample(self) -> None:
        """Videos for the first captions of the validation set."""
        config = self.config.samples
        captions = [c for b in self._validation_packs() for c in b.captions if c]
        prompts = list(dict.fromkeys(captions))[: config.count]
        if not prompts:
            return
        self.ema.copy_to(self.averaged)
        generator = Generator.around(self.averaged, self.encoding, self.spec, self.step)
        shape = VideoShape(
            num_frames=self.spec.num_frames,
            width=self.spec.width,
            height=self.spec.height,
            fps=self.spec.fps,
        )
        made = generate(
            generator, prompts, shape, config.sampler, tokens=config.tokens, seed=self.config.seed
        )
        folder = self.folder.samples / f"step-{self.step:08d}"
        videos = {}
        for i, (prompt, video) in enumerate(zip(prompts, made, strict=True)):
            videos[prompt] = folder / f"{i}.mp4"
            write_video(videos[prompt], video.frames.numpy(), fps=self.spec.fps)
        captions = {path.name: prompt for prompt, path in videos.items()}
        write_atomic(folder / "captions.json", json.dumps(captions).encode())
        self.metrics.log_videos(self.step, videos)

    def _loader_state(self) -> dict[str, Any]:
        """One for all ranks: each names the clips that it could not read itself."""
        return merge_skipped(self.ranks.gather(self.loader.state_dict()))

    def _save(self, loader: dict[str, Any]) -> None:
        self.saved_step = self.step
        if not self.ranks.first:
            return
        self.metrics.sync()
        content = checkpoint.Checkpoint(
            step=self.step,
            tensors={
                "model": self.parameters,
                "ema": self.ema.shadow,
                "optimizer": optimizer_tensors(self.optimizer, self.trained),
                **({"power_ema": tracks} if (tracks := self.power_ema.tensors()) else {}),
            },
            state={
                "config": asdict(self.config),
                "loader": loader,
                "rng": {"kind": "philox4x32-10", "seed": self.config.seed},
                "spec": self.spec.as_json(),
            },
            config_yaml=self.config_yaml,
            folders={"tokenizer": self.encoding.tokenizer.save},
        )
        if (lora := self.config.lora) is not None:
            self.ema.copy_to(self.averaged)
            save = partial(save_adapter, self.averaged, lora)
            content = replace(content, folders={**content.folders, "adapter": save})
        checkpoint.save(self.folder.checkpoints, content)
        checkpoint.keep_last(self.folder.checkpoints, self.config.keep_checkpoints)

    def plan(self) -> list[str]:
        """What `run` would do, in lines for a person."""
        data = self.loader.describe()
        start = f"goes on from {self.resume_from}" if self.resume_from else "starts anew"
        held_out = f"validation: {self.num_held_out} windows held out"
        return [
            f"{start}, {self.config.steps} steps on {self.device}",
            f"data: {_in_words(data)}",
            held_out if self.num_held_out else self._nothing_held_out(),
            f"network: {_in_words(asdict(self.config.model))}",
        ]


def _in_words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_plain(v)}" for name, v in values.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key}: {item}" for key, item in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
