"""`vfm curate`: score everything, decide, encode and pack what is kept, and account for it all."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common.errors import ConfigError
from common.machine import writing_to
from common.store_path import WRITABLE, Place, StorePath, names_in, place_of
from curation.captions import CaptionBook
from curation.config import CurateConfig
from curation.decide import Decision, decide
from curation.executors.choose import executor_of
from curation.folder import (
    check_nothing_to_drop,
    check_parameters,
    opened,
    parameters,
    remember_settings,
    sweep,
)
from curation.inventory import Inventory, in_order
from curation.ledger import Ledger
from curation.memory import Work
from curation.pipeline import Executor, Graph
from curation.progress import progress_on
from curation.report import write_report
from curation.results import Collected, collect
from curation.scores import not_measured
from curation.scoring import Scoring
from curation.shard import Sharded, ShardedClip, read_sharded, sweep_shards
from curation.sharding import Sharder
from curation.sources import EXTENSIONS, Found, find_sources, is_list
from curation.stage import Failure
from curation.stages.analyse import Analyse
from curation.stages.ingest import Ingest
from curation.summary import (
    bottleneck,
    print_summary,
    shards_against,
    stage_rates,
    write_failures,
    write_summary,
)
from curation.tables import write_clips, write_videos
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
    found = find_sources(config.input, without=output)
    if not found.files and not found.refused:
        endings = ", ".join(EXTENSIONS[:6])
        local = isinstance(folder, Path)
        if local and not folder.is_dir() and not is_list(config.input):
            raise ConfigError(f"input={config.input} has no ending of a video ({endings}, ...)")
        more = f" ({len(found.others)} files of other kinds)" if found.others else ""
        raise ConfigError(
            f"input={config.input} holds no video{more}: name a folder of videos ({endings}, ...)"
        )
    book = _captions(config, folder, found)
    series = output / "report" / "engine.jsonl"
    chosen = executor_of(config, series) if executor is None else contextlib.nullcontext(executor)
    with opened(output) as ledger, chosen as executor:
        run = _Run(config, output, ledger, console or Console(quiet=True), executor)
        return run(str(folder), found, book, on_start)


def _captions(config: CurateConfig, folder: Place, found: Found) -> CaptionBook:
    """What is said of the videos, and where it may lie."""
    explicit = place_of(config.captions) if config.captions else None
    if isinstance(folder, Path):
        return CaptionBook(folder, explicit)
    if any(file.path == str(folder) for file in found.files):  # one video alone
        return CaptionBook(folder.parent, explicit)
    return CaptionBook(folder, explicit, listed=found.others)


def _folders(config: CurateConfig) -> tuple[Place, Place]:
    folder, output = place_of(config.input), place_of(config.output)
    if isinstance(output, StorePath) and not config.output.startswith(WRITABLE):
        raise ConfigError(
            f"output={config.output}: a web server takes no files; name a folder, or a URL of "
            f"{', '.join(WRITABLE)}"
        )
    if isinstance(folder, Path) and not folder.exists():
        raise ConfigError(f"input={config.input} does not exist")
    if isinstance(output, StorePath) or isinstance(folder, StorePath):
        one, other = f"{folder}/", f"{output}/"
        if one.startswith(other) or other.startswith(one):
            raise ConfigError(
                f"output={config.output} and input={config.input} lie one inside the other, so the "
                "next run would curate its own clips: separate them"
            )
        return folder, output
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
        output: Place,
        ledger: Ledger,
        console: Console,
        executor: Executor,
    ) -> None:
        self._config = config
        self._output = output
        self._ledger = ledger
        self._console = console
        self._executor = executor
        self._ingest = Ingest(retries=config.retries)
        self._analyse = Analyse(config, output / "report" / "thumbs")
        self._inventory = Inventory(ledger)
        self._work = Work(ledger)
        self._sharder = Sharder(
            config, output, self._inventory, self._work, self._executor, self._console
        )
        self._unread: list[tuple[Failure, str]] = []
        """Files without an id, and their paths."""

    def __call__(
        self, root: str, input_: Found, book: CaptionBook, on_start: Callable[[], None]
    ) -> CurateResult:
        began = time.perf_counter()
        sweep(self._output)
        manifest, sharded = read_sharded(self._output / "shards")
        transcode = self._sharder.transcode
        now = parameters(self._config, self._analyse, transcode)
        check_parameters(self._output, self._ledger, manifest, now)
        if self._config.encode:
            self._sharder.check()
        on_start()
        sweep_shards(self._output / "shards", manifest)
        self._take_in(root, input_, book, sharded)
        sources = self._ledger.sources()
        scoring = Scoring(self._analyse, self._inventory, self._work, self._executor, self._console)
        found = collect(
            sources,
            scoring([source for source in sources if not source.duplicate]),
            scoring.failures,
            self._unread,
            analysis_hash=self._analyse.params_hash,
            thumbnails=names_in(self._output / "report" / "thumbs"),
        )
        decision = self._decide(found, manifest, sharded)
        remember_settings(self._ledger, self._config, now, decision.limits)
        num_stale = found.set_sharded(sharded)
        with writing_to(self._output):
            if self._config.encode:
                self._sharder.append(found, manifest, sharded)
                inside = {clip.clip_id for clip in found.clips if clip.kept}
            else:
                self._sharder.place(found, sharded.keys())
                inside = set(sharded)
            self._ledger.may_write()
            wall_s = time.perf_counter() - began
            ignored = [name for name in input_.others if name not in book.used]
            summary = self._summary(found, decision, ignored, book, num_stale, wall_s, inside)
            summary["files_hidden"] = input_.hidden
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

    # ---- score

    def _take_in(self, root: str, input_: Found, book: CaptionBook, sharded: Sharded) -> None:
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
        files = input_.files
        results = self._executor.run(
            Graph.chain([self._ingest]),
            map(self._inventory.known, files),
            self._work.memory,
            total=len(files),
        )
        with progress_on(self._console, self._executor) as progress:
            task = progress.add_task("read", total=len(files))
            for file, result in in_order(files, results):
                if isinstance(result, Failure):
                    self._unread.append((result, file.path))
                else:
                    self._inventory.remember(result, book.of(file.source))
                progress.advance(task)
        self._inventory.settle(root, {path for _, path in self._unread}, sharded.videos)

    def _decide(
        self, found: Collected, manifest: Manifest, sharded: Mapping[str, ShardedClip]
    ) -> Decision:
        """Percentiles are of all clips that there are at the first decision. What later input
        brings is held to the same values, since shards made by them are never rewritten."""
        fixed = self._ledger.meta("limits") if manifest.shards else None
        decision = decide(self._config, found.clips, fixed)
        found.decide(decision)
        dropped = [clip for clip in found.clips if not clip.kept and clip.clip_id in sharded]
        check_nothing_to_drop(self._output, len(dropped))
        return decision

    def _summary(
        self,
        found: Collected,
        decision: Decision,
        ignored: list[str],
        book: CaptionBook,
        num_stale: int,
        wall_s: float,
        sharded: Collection[str],
    ) -> dict[str, Any]:
        stages = stage_rates(self._work.clock, self._executor.workers)
        return {
            **found.accounting(),
            "num_videos": len(found.videos),
            "videos": found.video_counts(),
            "decodes": {
                "analysis": found.num_analysed,
                "transcode": self._work.decoded_sources(self._sharder.transcode),
            },
            "captioned_clips_kept": sum(bool(c.caption) for c in found.clips if c.kept),
            "captions_not_in_shards": num_stale,
            "caption_problems": dict(sorted(book.problems.items())),
            "scores_not_measured": not_measured(self._config.analysis),
            "files_ignored": ignored,
            "video_notes": {row.source: row.notes for row in found.videos if row.notes},
            **decision.facts(),
            "shards": shards_against(found.clips, sharded),
            "wall_s": round(wall_s, 3),
            "stages": stages,
            "bottleneck": bottleneck(stages, wall_s),
        }
