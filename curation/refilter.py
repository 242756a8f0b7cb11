"""`vfm refilter` and `vfm shard`: other decisions over a curated folder, and their shards.

A decision needs the stored scores alone, unless some shall be measured otherwise. It changes the
tables, the summary and the page, never a shard: those follow when they are asked for, and what they
hold meanwhile is said.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common.errors import ConfigError
from common.machine import writing_to
from common.store_path import place_of
from curation.config import CurateConfig, RefilterConfig, ReshardConfig
from curation.decide import Decision, decide
from curation.decisions import Decisions
from curation.executors.choose import executor_of
from curation.executors.local import LocalExecutor
from curation.folder import (
    check_nothing_to_drop,
    check_parameters,
    opened,
    parameters,
    remember_settings,
    settings_of,
    sweep,
)
from curation.inventory import Inventory
from curation.ledger import Ledger
from curation.memory import Work
from curation.pipeline import Executor
from curation.report import write_report
from curation.results import Collected
from curation.scores import MEASURES, measure_hashes, not_measured
from curation.scoring import Scoring
from curation.shard import Sharded, read_sharded
from curation.sharding import Sharder
from curation.stages.analyse import Analyse
from curation.stored import read_collected
from curation.summary import print_summary, shards_against, write_failures, write_summary
from curation.tables import write_clips, write_videos
from dataloading.schema import Manifest


@dataclass(frozen=True, kw_only=True)
class FolderResult:
    """`exit_code`: 0 done; 1 done, but some items failed; 3 nothing is kept."""

    summary: dict[str, Any]
    exit_code: int


def settings_after(config: RefilterConfig) -> CurateConfig:
    """A folder's settings with other limits, and other ways of measuring."""
    names = [field.name for field in dataclasses.fields(Decisions)]
    limits = {name: getattr(config, name) for name in names}
    folders = settings_of(config.folder)
    return dataclasses.replace(folders, **limits, analysis=config.analysis or folders.analysis)


def refilter(
    config: RefilterConfig,
    *,
    console: Console | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> FolderResult:
    """Decides again from the stored scores, in seconds and without a decode. Scores that shall be
    measured otherwise are measured first, and they alone.

    Percentiles are resolved over all clips that the folder has by now. Raises `ConfigError` where
    the folder is none, two limits leave nothing between them, or clips cannot be measured again.
    """
    settings, before = settings_after(config), settings_of(config.folder)
    with opened(place_of(settings.output)) as ledger:
        work = _Folder(settings, ledger, console, None)
        if _stale(settings, before):
            work.measure(ledger)
        decision = decide(settings, work.found.clips)
        on_start()
        work.found.decide(decision)
        work.sharder.place(work.found, work.sharded.keys())
        now = {**(ledger.meta("parameters") or {})}
        now["decide"] = work.parameters()["decide"]
        if work.num_measured:
            now["analyse"] = work.parameters()["analyse"]
        remember_settings(ledger, settings, now, decision.limits)
        return work.finish(decision, work.sharded.keys())


def preview(config: RefilterConfig) -> dict[str, Any]:
    """The summary that `refilter` would write. Raises `ConfigError` where that takes a decode."""
    settings = settings_after(config)
    stale = _stale(settings, settings_of(config.folder))
    if stale:
        raise ConfigError(
            f"dry_run=true decodes nothing, and other settings of analysis measure again: "
            f"{', '.join(stale)}"
        )
    folder = place_of(settings.output)
    with opened(folder) as ledger:
        found, summary = read_collected(folder, ledger.sources())
        decision = decide(settings, found.clips)
        found.decide(decision)
        sharded = read_sharded(folder / "shards")[1]
    return _summary(summary, found, decision, shards_against(found.clips, sharded.keys()))


def reshard(
    config: ReshardConfig,
    *,
    console: Console | None = None,
    executor: Executor | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> FolderResult:
    """Brings the shards of a folder to what it keeps, encoding only what has no encoding yet.

    Clips are added beside the shards that are there; where some are no longer kept, all shards are
    made anew, if the configuration says so. The same call continues one that was killed.

    Raises:
        ConfigError: where shards would have to be rewritten and it does not say so, where nothing
            is kept, or where they were made with parameters that this version no longer has.
    """
    settings = settings_of(config.folder)
    folder = place_of(settings.output)
    if config.rewrite and not isinstance(folder, Path):
        raise ConfigError(
            f"{config.folder} lies in an object store, where shards cannot be exchanged in one "
            "step: leave rewrite out, or curate into another output with these limits"
        )
    series = folder / "report" / "engine-shard.jsonl"
    chosen = executor_of(config, series) if executor is None else contextlib.nullcontext(executor)
    with opened(folder) as ledger, chosen as executor:
        work = _Folder(settings, ledger, console, executor)
        check_parameters(work.folder, ledger, work.manifest, work.parameters())
        # Once more, since a decision may have been killed before its tables were written.
        decision = decide(settings, [], ledger.meta("limits"))
        work.found.decide(decision)
        work.found.try_again()
        kept = {clip.clip_id for clip in work.found.clips if clip.kept}
        if not kept:
            raise ConfigError(f"{config.folder} keeps no clip: decide otherwise, `vfm refilter`")
        if not config.rewrite:
            check_nothing_to_drop(work.folder, len(work.sharded.keys() - kept))
        work.sharder.check()
        on_start()
        with writing_to(work.folder):
            if config.rewrite:
                work.sharder.rewrite(work.found, work.sharded)
            else:
                work.sharder.append(work.found, work.manifest, work.sharded)
        return work.finish(decision, [c.clip_id for c in work.found.clips if c.kept])


def shard_plan(config: ReshardConfig) -> dict[str, int]:
    """How many clips the shards hold, and how many `reshard` would add and leave out."""
    folder = place_of(settings_of(config.folder).output)
    with opened(folder) as ledger:
        found, _ = read_collected(folder, ledger.sources())
        found.try_again()
        return shards_against(found.clips, read_sharded(folder / "shards")[1].keys())


def _stale(settings: CurateConfig, before: CurateConfig) -> list[str]:
    """The measures whose scores are of other settings."""
    now, then = measure_hashes(settings.analysis), measure_hashes(before.analysis)
    changed = [name for name in MEASURES if now[name] != then[name]]
    fixed = ("width_px", "thumbnail_px")
    for name in fixed:
        value = getattr(settings.analysis, name)
        if value != getattr(before.analysis, name):
            raise ConfigError(
                f"analysis.{name}={value} makes other pictures, and so other clips, of every "
                "source: give a `vfm curate` into another folder"
            )
    return changed


class _Folder:
    """A curated folder that is open for changes."""

    def __init__(
        self,
        settings: CurateConfig,
        ledger: Ledger,
        console: Console | None,
        executor: Executor | None,
    ) -> None:
        self.folder = place_of(settings.output)
        self._settings = settings
        self.num_measured = 0
        """Sources of which scores were measured again."""
        self._console = console or Console(quiet=True)
        sweep(self.folder)
        self.manifest: Manifest
        self.sharded: Sharded
        self.manifest, self.sharded = read_sharded(self.folder / "shards")
        self.found, self._before = read_collected(self.folder, ledger.sources())
        self._ledger = ledger
        self._work = Work(ledger)
        self._inventory = Inventory(ledger)
        self._executor = executor or LocalExecutor()
        self.sharder = Sharder(
            settings,
            self.folder,
            self._inventory,
            self._work,
            self._executor,
            self._console,
        )

    def parameters(self) -> Any:
        analyse = Analyse(self._settings, self.folder / "report" / "thumbs")
        return parameters(self._settings, analyse, self.sharder.transcode)

    def measure(self, ledger: Ledger) -> None:
        """Measures again what is stale, by one decode of each source that has clips.

        Raises `ConfigError`, and nothing has changed, where a source is gone or fails, another
        version of vfm made the clips, or shards hold clips that would be cropped otherwise.
        """
        analyse = Analyse(self._settings, self.folder / "report" / "thumbs")
        have = {row.video_id for row in self.found.videos if row.num_clips}
        sources = [s for s in ledger.sources() if not s.duplicate and s.video_id in have]
        scoring = Scoring(analyse, self._inventory, self._work, self._executor, self._console)
        analyses = scoring(sources)
        if scoring.failures:
            first = scoring.failures[0]
            raise ConfigError(
                f"{len(scoring.failures)} of {len(sources)} sources cannot be measured again, "
                f"{first.label} the first ({first.reason}: {first.detail}): nothing was decided"
            )
        clips = {clip.clip_id: clip for found in analyses.values() for clip in found.clips}
        if clips.keys() != {clip.clip_id for clip in self.found.clips}:
            raise ConfigError(
                f"{self.folder} was curated by another version of vfm, which made other clips: "
                "its scores cannot be measured again; give a `vfm curate` into another folder"
            )
        cropped = [
            clip.clip_id
            for clip in self.found.clips
            if clip.clip_id in self.sharded and clip.crop != clips[clip.clip_id].crop
        ]
        if cropped:
            raise ConfigError(
                f"{len(cropped)} clips that the shards of {self.folder} hold would be cropped "
                f"otherwise, {cropped[0]} the first: give a `vfm curate` into another folder"
            )
        self.found.measured(analyses.values(), analyse.params_hash)
        self.num_measured = len(analyses)

    def finish(self, decision: Decision, sharded: Any) -> FolderResult:
        """Writes what has changed, and says it."""
        state = shards_against(self.found.clips, sharded)
        summary = _summary(self._before, self.found, decision, state)
        decoded = self._work.decoded_sources(self.sharder.transcode)
        summary["decodes"] = {
            "analysis": summary["decodes"]["analysis"] + self.num_measured,
            "transcode": decoded,
        }
        if self.num_measured:
            summary["scores_not_measured"] = not_measured(self._settings.analysis)
        failed = self.found.failed_entries
        self._ledger.may_write()
        with writing_to(self.folder):
            if self.num_measured:
                write_videos(self.folder / "videos.parquet", self.found.videos)
            write_clips(self.folder / "clips.parquet", self.found.clips)
            write_failures(self.folder / "failed.jsonl", failed, self._settings)
            write_summary(self.folder / "summary.json", summary)
            report = write_report(self.folder)
        print_summary(self._console, summary, failed, report)
        code = 3 if not summary["clips_kept"] else 1 if summary["clips_failed"] else 0
        return FolderResult(summary=summary, exit_code=code)


def _summary(
    before: dict[str, Any], found: Collected, decision: Decision, shards: dict[str, int]
) -> dict[str, Any]:
    """The summary of the run that scored, with another decision."""
    return {
        **before,
        **found.accounting(),
        "captioned_clips_kept": sum(bool(c.caption) for c in found.clips if c.kept),
        **decision.facts(),
        "shards": shards,
    }
