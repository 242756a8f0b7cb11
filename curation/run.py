"""`vfm curate`: score everything, decide, encode and pack what is kept, and account for it all."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.errors import ConfigError, MediaError
from common.storage import TEMPORARY_PREFIX
from curation.captions import CaptionBook
from curation.config import CurateConfig
from curation.decide import Decision, decide, typed_limits
from curation.executors.local import LocalExecutor
from curation.inventory import Inventory
from curation.ledger import KnownSource, Ledger, only_driver
from curation.machine import writing_to
from curation.memory import Work
from curation.pipeline import Executor
from curation.report import write_report
from curation.results import Collected, collect
from curation.shard import Packer, bucket_of, read_sharded, sweep_shards
from curation.sources import EXTENSIONS, Found, SourceFile, scan
from curation.stage import Failure, failure_of
from curation.stages.analyse import Analyse, Analysis
from curation.stages.ingest import Ingest
from curation.stages.transcode import ClipOrder, EncodedClip, SourceOrder, Transcode, encoded_size
from curation.summary import bottleneck, print_summary, stage_rates, write_failures, write_summary
from curation.tables import ClipRow, write_clips, write_videos
from dataloading.energon import write_energon
from dataloading.schema import Manifest


@dataclass(frozen=True, kw_only=True)
class CurateResult:
    """`exit_code`: 0 done; 1 done, but some items failed; 3 nothing was kept."""

    summary: dict[str, Any]
    exit_code: int


def curate(
    config: CurateConfig,
    *,
    console: Console | None = None,
    executor: Executor | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> CurateResult:
    """Curates a folder of videos; the same call continues a run that was killed.

    Args:
        console: where progress and the closing table go; None is silent.
        on_start: called once the output is this run's own and nothing is left to refuse.
    Raises:
        VfmError: where the request is wrong: no such input, nothing to do, folders inside each
            other, another driver at work, or other parameters than those of existing shards; or the
            machine fails: a full disk, a locked or damaged ledger.
    """
    folder, output = _folders(config)
    found = scan(folder, without=output)
    if not found.files and not found.refused:
        endings = ", ".join(EXTENSIONS[:6])
        if not folder.is_dir():
            raise ConfigError(f"input={config.input} has no ending of a video ({endings}, ...)")
        more = f" ({len(found.others)} files of other kinds)" if found.others else ""
        raise ConfigError(
            f"input={config.input} holds no video{more}: name a folder of videos ({endings}, ...)"
        )
    book = CaptionBook(folder, Path(config.captions) if config.captions else None)
    with only_driver(output / "ledger"):
        ledger = Ledger(output / "ledger")
        try:
            run = _Run(config, output, ledger, console or Console(quiet=True), executor)
            return run(folder, found, book, on_start)
        finally:
            ledger.close()


def _folders(config: CurateConfig) -> tuple[Path, Path]:
    folder, output = Path(config.input).absolute(), Path(config.output).absolute()
    if not folder.exists():
        raise ConfigError(f"input={config.input} does not exist")
    if output.exists() and not output.is_dir():
        raise ConfigError(
            f"output={config.output}: a file where a folder is needed; give another path"
        )
    # Unlike Path.resolve, a link that leads to itself is no error here.
    real_in, real_out = Path(os.path.realpath(folder)), Path(os.path.realpath(output))
    if real_in.is_dir() and real_out.is_relative_to(real_in):
        raise ConfigError(
            f"output={config.output} lies inside input={config.input}, so the next run would "
            "curate its own clips: choose a folder outside"
        )
    if real_in.is_relative_to(real_out):
        raise ConfigError(f"input={config.input} lies inside output={config.output}: separate them")
    if (output / "checkpoints").is_dir():
        raise ConfigError(f"output={config.output} is the folder of a training run: choose another")
    return folder, output


class _Run:
    """One call of `curate`, with the folder locked and the ledger open."""

    def __init__(
        self,
        config: CurateConfig,
        output: Path,
        ledger: Ledger,
        console: Console,
        executor: Executor | None,
    ) -> None:
        self._config = config
        self._output = output
        self._ledger = ledger
        self._console = console
        self._executor = executor or LocalExecutor()
        self._shards = output / "shards"
        self._spool = output / "ledger" / "spool"
        self._ingest = Ingest(retries=config.retries)
        self._analyse = Analyse(config, output / "report" / "thumbs")
        self._transcode = Transcode(config.transcode, self._spool, retries=config.retries)
        self._inventory = Inventory(ledger)
        self._work = Work(ledger, self._spool)
        self._failures: list[Failure] = []
        self._unread: list[tuple[Failure, str]] = []
        """Files without an id, and their paths."""

    def __call__(
        self, folder: Path, input_: Found, book: CaptionBook, on_start: Callable[[], None]
    ) -> CurateResult:
        began = time.perf_counter()
        manifest, sharded = read_sharded(self._shards)
        self._check_parameters(manifest)
        on_start()
        self._sweep(manifest)
        self._take_in(folder, input_, book, {clip_id.split("-")[0] for clip_id in sharded})
        analyses = self._score()
        decision = self._decide(analyses, manifest)
        found = collect(
            decision,
            self._ledger.sources(),
            analyses,
            self._failures,
            self._unread,
            analysis_hash=self._analyse.params_hash,
            transcode_hash=self._transcode.params_hash,
            thumbnails=self._output / "report" / "thumbs",
        )
        num_stale = found.set_sharded(sharded)
        with writing_to(self._output):
            self._shard(found, analyses, manifest, sharded.keys())
            wall_s = time.perf_counter() - began
            ignored = [name for name in input_.others if name not in book.used]
            summary = self._summary(found, decision, ignored, book, num_stale, wall_s)
            write_videos(self._output / "videos.parquet", found.videos)
            write_clips(self._output / "clips.parquet", found.clips)
            failed = found.failed_entries
            write_failures(self._output / "failed.jsonl", failed, self._config)
            write_summary(self._output / "summary.json", summary)
            report = write_report(self._output)
        print_summary(self._console, summary, failed, report)
        kept = summary["clips_kept"]
        return CurateResult(
            summary=summary, exit_code=3 if not kept else 1 if failed or num_stale else 0
        )

    # ---- what was done before

    def _check_parameters(self, manifest: Manifest) -> None:
        """Shards of one folder share their parameters; another set needs another folder."""
        now = {
            "analyse": {**self._analyse.params(), "version": self._analyse.version},
            "decide": {**typed_limits(self._config), "min_clip_s": self._config.min_clip_s},
            "transcode": {**self._transcode.params(), "version": self._transcode.version},
            "shard": asdict(self._config.shard),
        }
        now = json.loads(json.dumps(now))
        before = self._ledger.meta("parameters")
        if manifest.shards and before is None:
            raise ConfigError(
                f"{self._output} holds shards, but not the ledger that says how they were made: "
                "choose another output folder"
            )
        if manifest.shards and before != now:
            changed = list(_differences(before, now))
            raise ConfigError(
                f"{self._output} holds shards made with other parameters "
                f"({'; '.join(changed[:4])}): choose another output folder"
            )
        self._ledger.set_meta("parameters", now)

    def _sweep(self, manifest: Manifest) -> None:
        """Removes what a killed run left: half-written files, and tars that no manifest names;
        nobody else writes here now."""
        sweep_shards(self._shards, manifest)
        for folder in (self._shards, self._spool, self._output / "report"):
            for path in folder.rglob(f"{TEMPORARY_PREFIX}*"):
                path.unlink(missing_ok=True)
        for path in self._output.glob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)

    # ---- score

    def _take_in(
        self, folder: Path, input_: Found, book: CaptionBook, sharded: Collection[str]
    ) -> None:
        """Brings the inventory up to the input as it lies there now."""
        for refusal in input_.refused:
            failure = Failure(
                content_id="",
                span="",
                label=refusal.source,
                stage=self._ingest.name,
                attempts=1,
                reason=refusal.reason,
                detail=refusal.detail,
                lasting=False,
            )
            self._unread.append((failure, refusal.path))
        with self._progress() as progress:
            for file in progress.track(input_.files, description="read"):
                for result in self._executor.run(
                    [self._ingest], [self._inventory.known(file)], self._work.memory
                ):
                    if isinstance(result, Failure):
                        self._unread.append((result, file.path))
                    else:
                        self._inventory.remember(result, book.of(file.source))
        self._inventory.settle(folder, {path for _, path in self._unread}, sharded)

    def _score(self) -> dict[str, Analysis]:
        analyses: dict[str, Analysis] = {}
        sources = [s for s in self._ledger.sources() if not s.duplicate]
        with self._progress() as progress:
            for source in progress.track(sources, description="score"):
                result = self._analysed(source)
                if isinstance(result, Failure):
                    self._failures.append(result)
                else:
                    analyses[result.video_id] = result
        return analyses

    def _analysed(self, source: KnownSource) -> Analysis | Failure:
        item = SourceFile(source=source.source, path=source.path, content_id=source.video_id)
        known = self._work.memory.recall(self._analyse, item)
        if known is None:
            try:
                item = self._inventory.locate(source)
            except MediaError as error:
                return failure_of(item, self._analyse.name, 1, error)
            known = list(self._executor.run([self._analyse], [item], self._work.memory))
        (result,) = known
        return result

    def _decide(self, analyses: Mapping[str, Analysis], manifest: Manifest) -> Decision:
        """Percentiles are of all clips that there are at the first decision. What later input
        brings is held to the same values, since shards made by them are never rewritten."""
        fixed = self._ledger.meta("limits") if manifest.shards else None
        clips = [clip for analysis in analyses.values() for clip in analysis.clips]
        decision = decide(self._config, clips, fixed)
        self._ledger.set_meta("limits", decision.limits)
        return decision

    # ---- shard

    def _shard(
        self,
        found: Collected,
        analyses: Mapping[str, Analysis],
        manifest: Manifest,
        done: Collection[str],
    ) -> None:
        kept = {clip.clip_id: clip for clip in found.clips if clip.kept}
        orders = {clip_id: self._order(clip) for clip_id, clip in kept.items()}
        buckets = {
            clip_id: bucket_of(order.width, order.height, kept[clip_id].seconds, self._config.shard)
            for clip_id, order in orders.items()
        }
        found.set_buckets(buckets)
        for clip_id in done:
            (self._spool / f"{clip_id}.mp4").unlink(missing_ok=True)
            orders.pop(clip_id, None)
        packer = Packer(
            self._shards,
            self._spool,
            manifest,
            {clip_id: buckets[clip_id] for clip_id in orders},
            {clip_id: self._describe(kept[clip_id], order) for clip_id, order in orders.items()},
            self._config.shard.target_bytes,
        )
        todo: list[ClipOrder] = []
        for order in orders.values():
            before = self._work.encoded(self._transcode, order)
            if isinstance(before, EncodedClip):
                packer.add(before)
            elif before is not None:
                self._clip_failed(found, packer, before)
            else:
                todo.append(order)
        items = self._sources_of(todo, found, analyses, packer)
        with self._progress() as progress:
            task = progress.add_task("shard", total=len(orders), completed=len(orders) - len(todo))
            for result in self._executor.run([self._transcode], items, self._work.memory):
                if isinstance(result, EncodedClip):
                    packer.add(result)
                    progress.advance(task)
                elif result.span:
                    self._clip_failed(found, packer, result)
                    progress.advance(task)
                else:  # a whole source failed, so each of its clips did
                    for order in todo:
                        if order.content_id == result.content_id:
                            self._clip_failed(found, packer, result, order.clip_id)
                            progress.advance(task)
        manifest = packer.finish()
        if manifest.shards:
            write_energon(self._shards, manifest)

    def _sources_of(
        self,
        orders: Sequence[ClipOrder],
        found: Collected,
        analyses: Mapping[str, Analysis],
        packer: Packer,
    ) -> Iterator[SourceOrder]:
        """One item per source, in order of id, so that tars fill up from the front. Clips of
        sources that are gone fail here."""
        by_id: dict[str, list[ClipOrder]] = {}
        for order in sorted(orders, key=lambda o: (o.content_id, o.start_us)):
            by_id.setdefault(order.content_id, []).append(order)
        for content_id, clips in by_id.items():
            source = found.sources[content_id]
            try:
                file = self._inventory.locate(source)
            except MediaError as error:
                for clip in clips:
                    failure = failure_of(clip, self._transcode.name, 1, error)
                    self._clip_failed(found, packer, failure)
                continue
            yield SourceOrder(
                content_id=content_id,
                source=source.source,
                path=file.path,
                state=file.state,
                clips=clips,
                num_threads=1 if analyses[content_id].num_errors else 0,
            )

    def _order(self, clip: ClipRow) -> ClipOrder:
        width, height = encoded_size(
            clip.width, clip.height, self._config.transcode.max_short_side_px
        )
        return ClipOrder(
            clip_id=clip.clip_id,
            content_id=clip.video_id,
            start_us=clip.start_us,
            end_us=clip.end_us,
            num_frames=clip.num_frames,
            width=width,
            height=height,
        )

    def _describe(self, clip: ClipRow, order: ClipOrder) -> dict[str, Any]:
        """The JSON member beside a clip."""
        return {
            "clip_id": clip.clip_id,
            "video_id": clip.video_id,
            "source": clip.source,
            "start_s": clip.start_us / 1e6,
            "end_s": clip.end_us / 1e6,
            "duration_s": clip.seconds,
            "width": order.width,
            "height": order.height,
            "fps": clip.fps,
            "num_frames": clip.num_frames,
            "caption": clip.caption or "",
            "caption_source": clip.caption_source,
            "scores": {name: s.value for name, s in clip.scores.items() if s.valid},
        }

    def _clip_failed(
        self, found: Collected, packer: Packer, failure: Failure, clip_id: str | None = None
    ) -> None:
        clip_id = clip_id or failure.label
        packer.skip(clip_id)
        found.clip_failed(clip_id, failure)

    def _summary(
        self,
        found: Collected,
        decision: Decision,
        ignored: list[str],
        book: CaptionBook,
        num_stale: int,
        wall_s: float,
    ) -> dict[str, Any]:
        stages = stage_rates(self._work.clock)
        return {
            **found.accounting(),
            "num_videos": len(found.videos),
            "videos": found.video_counts(),
            "decodes": {
                "analysis": found.num_analysed,
                "transcode": self._work.decoded_sources(self._transcode),
            },
            "captioned_clips_kept": sum(bool(c.caption) for c in found.clips if c.kept),
            "captions_not_in_shards": num_stale,
            "caption_problems": dict(sorted(book.problems.items())),
            "files_ignored": ignored,
            "thresholds": decision.thresholds(),
            "wall_s": round(wall_s, 3),
            "stages": stages,
            "bottleneck": bottleneck(stages, wall_s),
        }

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif before != now:
        yield f"{key} was {before}, is {now}"
