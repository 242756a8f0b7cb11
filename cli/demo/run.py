"""The main job from end to end: the commands a person would type, and the page that shows it."""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.progress import Progress

from cli.config import load
from cli.demo.config import DemoConfig
from cli.demo.facts import (
    DemoClip,
    DemoExample,
    DemoPage,
    Learning,
    TokenizerFacts,
    checks,
)
from cli.demo.footage import sample_captions, sample_footage
from cli.demo.measure import Comparison, HeldOut, compare, held_out_windows, reconstruction
from cli.demo.page import write_demo_page
from cli.demo.record import DemoRecord
from cli.main import command
from cli.schema import plain
from common.errors import NothingProduced
from common.media import write_video
from common.pages import LossPoint, ValPoint, duration
from inference.config import SamplerConfig
from inference.loading import Generator, load_generator
from inference.shape import VideoShape
from models.tokenizers.base import psnr_db
from training.config import TrainConfig
from training.metrics import read_metrics

T = TypeVar("T")


class DemoRun:
    """Curate, pretrain, generate, measure, and write the page; each part goes on if interrupted."""

    def __init__(self, config: DemoConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.output = Path(config.folder)
        self.curated = self.output / "curated"
        self.run_folder = self.output / "run"
        self.page = self.output / "index.html"
        self.record = DemoRecord(self.output, config.videos)
        # Before the curation, so that what is impossible later is refused at once.
        self.train = load("pretrain", self.pretrain_words(), TrainConfig).config
        self.sampler = SamplerConfig(guidance_scale=config.guidance_scale)

    def run(self) -> int:
        """Returns the exit code: 0, or 1 where some videos or clips could not be used."""
        code = self._timed("curate", lambda: self._command("curate", self.curate_words()))
        if code not in (0, 1):
            raise NothingProduced(
                f"curation kept no clip, so there is nothing to train on; "
                f"{self.curated / 'report' / 'index.html'} says why"
            )
        self.record.trains_on(self.curated / "shards" / "manifest.json", self.run_folder)
        self._timed("pretrain", lambda: self._command("pretrain", self.pretrain_words()))
        train = self.train
        generator = load_generator(self.run_folder)
        spec = generator.spec
        shape = VideoShape(
            num_frames=spec.num_frames, width=spec.width, height=spec.height, fps=spec.fps
        )
        windows = held_out_windows(train, shape)
        comparison = self._timed("generate", lambda: self._compare(windows, generator, shape))
        examples = self._examples(comparison, generator, shape) if comparison else []
        quality = reconstruction(generator.encoding.tokenizer, train, windows) if windows else None
        page = self._page(train, generator, comparison, examples, quality)
        write_demo_page(self.page, page)
        for check in checks(page.learning) if page.learning else []:
            told = "passed" if check.passed else "FAILED"
            self.console.print(f"{told}: {check.sentence}", highlight=False, soft_wrap=True)
        took = ", ".join(
            f"{part} {duration(seconds)}" for part, seconds in self.record.wall_s.items()
        )
        self.console.print(f"\n{took}\n{self.page.absolute()}", highlight=False, soft_wrap=True)
        return code

    def curate_words(self) -> list[str]:
        """The settings of `vfm curate`."""
        words = [f"output={self.curated}"]
        if self.config.videos is not None:
            return [f"input={self.config.videos}", *words]
        return [f"input={sample_footage()}", f"captions={sample_captions()}", *words]

    def pretrain_words(self) -> list[str]:
        """The settings of `vfm pretrain`."""
        words = [f"experiment={self.config.experiment}", f"data.path={self.curated}"]
        words += [f"output={self.run_folder}", f"seed={self.config.seed}"]
        return words + ([f"steps={self.config.steps}"] if self.config.steps else [])

    def _command(self, name: str, words: list[str]) -> int:
        self.console.rule(f"vfm {name}")
        return command(name).run(words)

    def _timed(self, part: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self.record.add(part, time.perf_counter() - began)
        return result

    def _compare(
        self, windows: list[HeldOut], generator: Generator, shape: VideoShape
    ) -> Comparison | None:
        self.console.rule("vfm generate")
        with Progress(
            console=self.console, transient=True, disable=not self.console.is_terminal
        ) as bars:
            bar = bars.add_task("denoise", total=2 * self.sampler.num_steps)
            comparison = compare(
                generator,
                windows,
                shape,
                self.sampler,
                max_captions=self.config.max_captions,
                seed=self.config.seed,
                on_step=lambda _: bars.advance(bar),
            )
        if comparison is None:
            self.console.print(
                "fewer than two captions have a held-out window: nothing to compare",
                soft_wrap=True,
            )
        return comparison

    def _examples(
        self, comparison: Comparison, generator: Generator, shape: VideoShape
    ) -> list[DemoExample]:
        """Writes the videos of every row: real, reconstructed, generated, under another caption."""
        folder = self.output / "generated"
        tokenizer = generator.encoding.tokenizer
        examples = []
        rows = zip(comparison.chosen, comparison.generated, comparison.shuffled, strict=True)
        for i, (window, made, other) in enumerate(rows):
            reconstructed = tokenizer.decode(tokenizer.encode(window.frames)).cpu()
            videos = {
                "real": window.frames,
                "reconstructed": reconstructed,
                "generated": made.frames,
                "shuffled": other.frames,
            }
            paths = {name: folder / f"{i}-{name}.mp4" for name in videos}
            for name, frames in videos.items():
                write_video(paths[name], frames.numpy(), fps=shape.fps or 1.0)
            example = DemoExample(
                caption=window.caption,
                clip_label=_label(i),
                psnr_db=psnr_db(reconstructed, window.frames),
                **paths,
            )
            examples.append(example)
        return examples

    def _page(
        self,
        train: TrainConfig,
        generator: Generator,
        comparison: Comparison | None,
        examples: list[DemoExample],
        quality: dict[str, tuple[float, float]] | None,
    ) -> DemoPage:
        records = read_metrics(self.run_folder)
        val = [
            ValPoint(
                step=r["step"],
                loss=r["val_loss"],
                per_sigma={float(s): v for s, v in r["val_per_sigma"].items()},
            )
            for r in records
            if "val_loss" in r
        ]
        what = "your footage" if self.config.videos else "sample footage"
        return DemoPage(
            title=f"From {what} to generated video",
            created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            wall_s=self.record.wall_s,
            settings=_sections(plain(train)),
            clips=_clips(self.curated),
            loss=[LossPoint(step=r["step"], loss=r["loss"]) for r in records if "loss" in r],
            val=val,
            learning=_learning(val, comparison) if comparison and val else None,
            tokenizer=_tokenizer_facts(train, quality) if quality else None,
            examples=examples,
            machine={
                "processor": platform.processor() or platform.machine(),
                "threads": str(torch.get_num_threads()),
                "device": str(generator.encoding.device),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            version=importlib.metadata.version("vfm"),
        )


def _label(i: int) -> str:
    return f"caption {i + 1}"


def _learning(val: list[ValPoint], comparison: Comparison) -> Learning:
    labels = {w.caption: _label(i) for i, w in enumerate(comparison.chosen)}
    columns = [labels.get(w.caption, w.clip_id) for w in comparison.columns]
    return Learning(
        first_val_loss=val[0].loss,
        last_val_loss=val[-1].loss,
        matched=comparison.matched,
        total=len(comparison.chosen),
        shuffled_matched=comparison.shuffled_matched,
        distances=comparison.distances.tolist(),
        row_labels=[_label(i) for i in range(len(comparison.chosen))],
        column_labels=columns,
        note=(
            "Mean squared distance between the latents of a generated video and those of the "
            "window held out of each clip. Validation loss is the unweighted denoising error on "
            "those windows, at fixed noise and noise levels, with the averaged weights."
        ),
    )


def _tokenizer_facts(train: TrainConfig, quality: dict[str, tuple[float, float]]) -> TokenizerFacts:
    fit = train.tokenizer.fit
    values = 3 * fit.temporal * fit.spatial**2
    return TokenizerFacts(
        quality=quality,
        compression=(
            f"{fit.temporal}x{fit.spatial}x{fit.spatial} pixels ({values} values) to "
            f"{fit.channels} latent channels"
        ),
        how=(
            "Haar wavelets and the principal directions of the training windows, in closed form; "
            f"then a causal convolutional decoder, trained for {train.tokenizer.fit_steps} steps. "
            "The DCT keeps as many numbers of each block of pixels, those which vary most."
        ),
    )


def _sections(settings: dict[str, Any]) -> dict[str, dict[str, object]]:
    """Nested settings as sections, the loose ones first."""
    loose = {k: v for k, v in settings.items() if not isinstance(v, dict)}
    return {"run": loose, **{k: v for k, v in settings.items() if isinstance(v, dict)}}


def _clips(curated: Path) -> list[DemoClip]:
    clips = []
    for i, row in enumerate(pq.read_table(curated / "clips.parquet").to_pylist()):
        thumbnail = curated / "report" / "thumbs" / f"{row['clip_id']}.jpg"
        clips.append(
            DemoClip(
                label=f"clip {i + 1}",
                source=row["source"],
                start_s=row["start_s"],
                end_s=row["end_s"],
                kept=row["kept"],
                reject_reason=row["reject_reason"],
                thumbnail=thumbnail if thumbnail.is_file() else None,
                caption=row["caption"] or "",
                scores={
                    name.removeprefix("score_"): value
                    for name, value in row.items()
                    if name.startswith("score_") and value is not None
                },
            )
        )
    return clips
