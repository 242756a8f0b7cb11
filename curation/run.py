"""`vfm curate`: score everything, decide, encode and pack what is kept, and account for it all."""

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.errors import ConfigError
from common.storage import TEMPORARY_PREFIX, write_atomic
from curation.captions import CaptionBook, Captions
from curation.config import CurateConfig
from curation.decide import thresholds
from curation.executors.local import LocalExecutor
from curation.ledger import Ledger, only_driver
from curation.pipeline import Executor, Memory
from curation.report import write_report
from curation.results import Collected, collect
from curation.shard import Packer, bucket_of, sharded_ids
from curation.sources import SourceFile, find_sources
from curation.stage import Failure, Item, Stage, failure_to_dict
from curation.stages.analyse import Analyse, Analysis, analysis_from_dict, analysis_to_dict
from curation.stages.ingest import Ingest
from curation.stages.transcode import ClipOrder, EncodedClip, SourceOrder, Transcode, encoded_size
from curation.tables import ClipRow, write_clips, write_failed, write_videos
from dataloading.energon import write_energon

_NOT_OF_THE_CONTENT = frozenset(["missing", "unreadable"])
"""Failures of the place where a file lies; never recorded, because the content may be fine."""


@dataclass(frozen=True, kw_only=True)
class CurateResult:
    """`exit_code`: 0 done; 1 done, but some items failed; 3 nothing was kept."""

    summary: dict[str, Any]
    exit_code: int


def curate(
    config: CurateConfig, *, console: Console | None = None, executor: Executor | None = None
) -> CurateResult:
    """Curates a folder of videos; the same call continues a run that was killed.

    Args:
        console: where progress and the closing table go; None is silent.
    Raises:
        VfmError: where the request is wrong: no such input, nothing to do, folders inside each
            other, another driver at work, or other parameters than those of existing shards.
    """
    folder, output = _folders(config)
    candidates, others = find_sources(folder)
    if not candidates:
        more = f" ({len(others)} files of other kinds)" if others else ""
        raise ConfigError(f"input={config.input} holds no video{more}: name a folder of videos")
    book = CaptionBook(folder, Path(config.captions) if config.captions else None)
    with only_driver(output / "ledger"):
        ledger = Ledger(output / "ledger")
        try:
            run = _Run(config, output, ledger, console or Console(quiet=True), executor)
            return run(candidates, others, book)
        finally:
            ledger.close()


def _folders(config: CurateConfig) -> tuple[Path, Path]:
    folder, output = Path(config.input).absolute(), Path(config.output).absolute()
    if not folder.exists():
        raise ConfigError(f"input={config.input} does not exist")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output={config.output} is a file: name a folder")
    real_in, real_out = folder.resolve(), output.resolve()
    if real_in.is_dir() and real_out.is_relative_to(real_in):
        raise ConfigError(
            f"output={config.output} lies inside input={config.input}, so the next run would "
            "curate its own clips: choose a folder outside"
        )
    if real_in.is_relative_to(real_out):
        raise ConfigError(f"input={config.input} lies inside output={config.output}: separate them")
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
        self._memory = Memory(recall=self._recall, record=self._record)
        self._failures: list[Failure] = []
        self._clock: dict[str, dict[str, float]] = {}

    def __call__(
        self, candidates: list[SourceFile], others: list[str], book: CaptionBook
    ) -> CurateResult:
        began = time.perf_counter()
        self._check_parameters()
        self._sweep()
        analyses = self._score(candidates, book)
        found = collect(
            self._config,
            self._ledger.sources(),
            analyses,
            self._failures,
            analysis_hash=self._analyse.params_hash,
            transcode_hash=self._transcode.params_hash,
            thumbnails=self._output / "report" / "thumbs",
        )
        self._shard(found)
        ignored = [name for name in others if name not in book.used]
        summary = self._summary(found, ignored, book, time.perf_counter() - began)
        self._write(found, summary)
        report = write_report(self._output)
        kept = summary["clips_kept"]
        self._close(summary, report)
        failed = bool(found.failed_entries)
        return CurateResult(summary=summary, exit_code=3 if not kept else 1 if failed else 0)

    # ---- what was done before

    def _recall(self, stage: Stage[Any, Any], item: Item) -> Sequence[Any] | None:
        if stage is not self._analyse:
            return None
        raw = self._ledger.recall(item.content_id, item.span, stage.name, stage.params_hash)
        if raw is None:
            return None
        return [_failure(raw) if "lasting" in raw else analysis_from_dict(raw)]

    def _record(
        self, stage: Stage[Any, Any], item: Item, results: Sequence[Any], wall_s: float
    ) -> None:
        clock = self._clock.setdefault(stage.name, {"items": 0, "wall_s": 0.0})
        clock["items"] += 1
        clock["wall_s"] += wall_s
        if stage is self._ingest:
            return
        for result in results:
            if isinstance(result, Failure):
                if result.lasting and result.reason not in _NOT_OF_THE_CONTENT:
                    self._keep(stage, result, failure_to_dict(result), wall_s)
            elif isinstance(result, Analysis):
                clock["seconds"] = clock.get("seconds", 0.0) + result.duration_us / 1e6
                clock["frames"] = clock.get("frames", 0) + result.num_frames
                self._keep(stage, item, analysis_to_dict(result), wall_s)
            else:
                clock["seconds"] = clock.get("seconds", 0.0) + result.duration_s
                clock["frames"] = clock.get("frames", 0) + result.num_frames
                self._keep(stage, result, asdict(result), wall_s / len(results))

    def _keep(self, stage: Stage[Any, Any], key: Item, value: Any, wall_s: float) -> None:
        self._ledger.record(key.content_id, key.span, stage.name, stage.params_hash, value, wall_s)

    def _check_parameters(self) -> None:
        """Shards of one folder share their parameters; another set needs another folder."""
        now = {
            "analyse": self._analyse.params(),
            "decide": {**thresholds(self._config), "min_clip_s": self._config.min_clip_s},
            "transcode": self._transcode.params(),
            "shard": asdict(self._config.shard),
        }
        now = json.loads(json.dumps(now))
        before = self._ledger.meta("parameters")
        manifest, _ = sharded_ids(self._shards)
        if manifest.shards and before is not None and before != now:
            changed = list(_differences(before, now))
            raise ConfigError(
                f"{self._output} holds shards made with other parameters "
                f"({'; '.join(changed[:4])}): choose another output folder"
            )
        self._ledger.set_meta("parameters", now)

    def _sweep(self) -> None:
        """Removes half-written files of a killed run; nobody else writes here now."""
        for folder in (self._shards, self._spool, self._output / "report"):
            for path in folder.rglob(f"{TEMPORARY_PREFIX}*"):
                path.unlink(missing_ok=True)
        for path in self._output.glob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)

    # ---- score

    def _score(self, candidates: list[SourceFile], book: CaptionBook) -> dict[str, Analysis]:
        analyses: dict[str, Analysis] = {}
        with self._progress() as progress:
            task = progress.add_task("score", total=len(candidates))
            for file in candidates:
                for ingested in self._executor.run(
                    [self._ingest], [self._known(file)], self._memory
                ):
                    if isinstance(ingested, Failure):
                        self._failures.append(ingested)
                        continue
                    self._remember(ingested, book.of(file.source))
                progress.advance(task)
            sources = [s for s in self._ledger.sources() if not s.duplicate]
            progress.reset(task, total=len(sources), description="score")
            for source in sources:
                item = SourceFile(
                    source=source.source, path=source.path, content_id=source.video_id
                )
                for result in self._executor.run([self._analyse], [item], self._memory):
                    if isinstance(result, Failure):
                        self._failures.append(result)
                    else:
                        analyses[result.video_id] = result
                progress.advance(task)
        return analyses

    def _known(self, file: SourceFile) -> SourceFile:
        stat = Path(file.path).stat()
        known = self._ledger.known_file(file.path, stat.st_size, stat.st_mtime_ns)
        return SourceFile(source=file.source, path=file.path, content_id=known or "")

    def _remember(self, file: SourceFile, captions: Captions) -> None:
        stat = Path(file.path).stat()
        self._ledger.remember_file(file.path, stat.st_size, stat.st_mtime_ns, file.content_id)
        self._ledger.remember_source(file.content_id, file.source, file.path, asdict(captions))

    # ---- shard

    def _shard(self, found: Collected) -> None:
        manifest, done = sharded_ids(self._shards)
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
            before = self._encoded_before(order)
            if isinstance(before, EncodedClip):
                packer.add(before)
            elif before is not None:
                self._clip_failed(found, packer, before)
            else:
                todo.append(order)
        with self._progress() as progress:
            task = progress.add_task("shard", total=len(orders), completed=len(orders) - len(todo))
            for result in self._executor.run(
                [self._transcode], _by_source(todo, found), self._memory
            ):
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
            "scores": {name: value for name, (value, valid) in clip.scores.items() if valid},
        }

    def _encoded_before(self, order: ClipOrder) -> EncodedClip | Failure | None:
        stage = self._transcode
        raw = self._ledger.recall(order.content_id, order.span, stage.name, stage.params_hash)
        if raw is None:
            return None
        if "lasting" in raw:
            return _failure(raw)
        clip = EncodedClip(**raw)
        path = self._spool / f"{clip.clip_id}.mp4"
        whole = path.is_file() and path.stat().st_size == clip.num_bytes
        return clip if whole else None

    def _clip_failed(
        self, found: Collected, packer: Packer, failure: Failure, clip_id: str | None = None
    ) -> None:
        clip_id = clip_id or failure.label
        packer.skip(clip_id)
        found.clip_failed(clip_id, failure)

    # ---- what the run leaves

    def _summary(
        self, found: Collected, ignored: list[str], book: CaptionBook, wall_s: float
    ) -> dict[str, Any]:
        stages = {}
        for name, clock in self._clock.items():
            busy_s = max(clock["wall_s"], 1e-9)
            stages[name] = {"items": clock["items"], "wall_s": round(clock["wall_s"], 3)}
            for unit in ("seconds", "frames"):
                if unit in clock:
                    stages[name][f"video_{unit}_per_s"] = round(clock[unit] / busy_s, 2)
        transcoded = self._ledger.recorded(self._transcode.name, self._transcode.params_hash)
        return {
            **found.accounting(),
            "num_videos": len(found.videos),
            "videos": found.video_counts(),
            "decodes": {
                "analysis": found.num_analysed,
                "transcode": len({video_id for video_id, _ in transcoded}),
            },
            "captioned_clips_kept": sum(bool(c.caption) for c in found.clips if c.kept),
            "caption_problems": dict(sorted(book.problems.items())),
            "files_ignored": ignored,
            "thresholds": thresholds(self._config),
            "wall_s": round(wall_s, 3),
            "stages": stages,
            "bottleneck": _bottleneck(stages, wall_s),
        }

    def _write(self, found: Collected, summary: dict[str, Any]) -> None:
        write_videos(self._output / "videos.parquet", found.videos)
        write_clips(self._output / "clips.parquet", found.clips)
        entries = []
        for entry in found.failed_entries:
            command = self._command(entry["path"])
            entries.append({k: v for k, v in entry.items() if k != "path"} | {"command": command})
        write_failed(self._output / "failed.jsonl", entries)
        text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
        write_atomic(self._output / "summary.json", text.encode())

    def _command(self, path: str) -> str:
        """The command that meets one failure again, alone and in a folder of its own."""
        words = [f"input={path}", f"output={self._output}-again", *_overrides(self._config)]
        return shlex.join(["vfm", "curate", *words])

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )

    def _close(self, summary: dict[str, Any], report: Path) -> None:
        table = Table("", "clips", "seconds", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        table.add_row("kept", str(summary["clips_kept"]), f"{summary['seconds_kept']:.1f}")
        for kind in ("rejected", "failed"):
            for reason, seconds in summary[f"seconds_{kind}"].items():
                count = summary[f"clips_{kind}"].get(reason)
                shown = "" if count is None else str(count)
                table.add_row(f"{kind}: {reason}", shown, f"{seconds:.1f}")
        table.add_row("in", str(summary["clips_in"]), f"{summary['seconds_in']:.1f}")
        self._console.print(table)
        for name, problem in summary["caption_problems"].items():
            self._console.print(f"caption left out: {name} {problem}", markup=False)
        if summary["files_ignored"]:
            self._console.print(f"{len(summary['files_ignored'])} files are no videos, ignored")
        self._console.print(str(report), markup=False, highlight=False, soft_wrap=True)


def _by_source(orders: Sequence[ClipOrder], found: Collected) -> Iterator[SourceOrder]:
    """One item per source, in order of id, so that tars fill up from the front."""
    by_id: dict[str, list[ClipOrder]] = {}
    for order in sorted(orders, key=lambda o: (o.content_id, o.start_us)):
        by_id.setdefault(order.content_id, []).append(order)
    for content_id, clips in by_id.items():
        source = found.sources[content_id]
        yield SourceOrder(
            content_id=content_id, source=source.source, path=source.path, clips=clips
        )


def _failure(raw: dict[str, Any]) -> Failure:
    return Failure(**raw)


def _bottleneck(stages: dict[str, dict[str, Any]], wall_s: float) -> str:
    if not stages:
        return "Nothing was left to do."
    name = max(stages, key=lambda n: stages[n]["wall_s"])
    share = stages[name]["wall_s"] / max(wall_s, 1e-9)
    rate = stages[name].get("video_seconds_per_s")
    text = f"The slowest stage is {name}: {share:.0%} of the time"
    return f"{text}, {rate:.1f} s of video per second." if rate else f"{text}."


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif before != now:
        yield f"{key} was {before}, is {now}"


def _overrides(config: Any, default: Any = None, prefix: str = "") -> Iterator[str]:
    """`key=value` for everything that is not at its default, input and output left out."""
    default = default or CurateConfig(input="", output="")
    for field in fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if is_dataclass(value):
            yield from _overrides(value, usual, f"{prefix}{field.name}.")
        elif value != usual and prefix + field.name not in ("input", "output"):
            shown = json.dumps(value) if isinstance(value, bool | list) or value is None else value
            yield f"{prefix}{field.name}={shown}"
