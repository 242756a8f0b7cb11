"""What stages did before, from the ledger, and how long they took in this run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from curation.ledger import Ledger
from curation.pipeline import Memory
from curation.spool import EncodedClip
from curation.stage import NOT_LASTING, Failure, Item, Stage, failure_to_dict
from curation.stages.analyse import Analyse, Analysis, analysis_from_dict, analysis_to_dict
from curation.stages.ingest import Ingest
from curation.stages.transcode import ClipOrder, Transcode


class Work:
    """The executors' memory, in a ledger. What one item gave is recorded together or not at all."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.memory = Memory(recall=self._recall, record=self._record)
        self.clock: dict[str, dict[str, float]] = {}
        """Stage to items, seconds of work, and seconds and frames of footage."""
        self.may_write = ledger.may_write

    def encoded(self, stage: Transcode, order: ClipOrder) -> EncodedClip | Failure | None:
        """What became of a clip before; None where it is still to be encoded."""
        raw = self._ledger.recall(order.content_id, order.span, stage.name, stage.params_hash)
        if raw is None:
            return None
        if "lasting" in raw:
            return _lasting(raw)
        return stage.found(order)

    def earlier(self, stage: Analyse, item: Item) -> Analysis | None:
        """An analysis of the same clips whose scores are partly of other parameters; the one that
        leaves least to measure again."""
        raws = self._ledger.recorded_of(item.content_id, item.span, stage.name)
        alike = [raw for raw in raws if raw.get("base") == stage.base]
        now = stage.measured
        best = max(alike, key=lambda raw: len(raw["measured"].items() & now.items()), default=None)
        return None if best is None else analysis_from_dict(best)

    def decoded_sources(self, stage: Transcode) -> int:
        """How many sources that stage has ever met."""
        return len(self._ledger.recorded(stage.name, stage.params_hash))

    def analysed(self, stage: Analyse) -> set[str]:
        """Ids of the videos of which an analysis is known, or why there can be none."""
        return self._ledger.recorded(stage.name, stage.params_hash)

    def analyses(
        self, stage: Analyse, video_ids: Iterable[str]
    ) -> Iterator[tuple[str, Analysis | Failure | None]]:
        """What is known of videos that are `analysed`; None is to be tried again."""
        for video_id, raw in self._ledger.recall_all(video_ids, stage.name, stage.params_hash):
            yield video_id, _analysis(raw)

    def _recall(self, stage: Stage[Any, Any], item: Item) -> Sequence[Any] | None:
        if isinstance(stage, Ingest):
            return [item] if item.content_id else None
        if not isinstance(stage, Analyse):
            return None
        raw = self._ledger.recall(item.content_id, item.span, stage.name, stage.params_hash)
        if raw is None:
            return None
        known = _analysis(raw)
        return None if known is None else [known]

    def _record(
        self, stage: Stage[Any, Any], item: Item, results: Sequence[Any], wall_s: float
    ) -> None:
        clock = self.clock.setdefault(stage.name, {"items": 0, "wall_s": 0.0})
        clock["items"] += 1
        clock["wall_s"] += wall_s
        if isinstance(stage, Ingest):
            return
        with self._ledger.together():
            for result in results:
                if isinstance(result, Failure):
                    if result.lasting:
                        self._keep(stage, result, failure_to_dict(result), wall_s)
                    continue
                if isinstance(result, Analysis):
                    seconds, key, value = result.duration_us / 1e6, item, analysis_to_dict(result)
                else:
                    seconds, key, value = result.duration_s, result, asdict(result)
                clock["seconds"] = clock.get("seconds", 0.0) + seconds
                clock["frames"] = clock.get("frames", 0) + result.num_frames
                self._keep(stage, key, value, wall_s / len(results))

    def _keep(self, stage: Stage[Any, Any], key: Item, value: Any, wall_s: float) -> None:
        self._ledger.record(key.content_id, key.span, stage.name, stage.params_hash, value, wall_s)


def _analysis(raw: dict[str, Any]) -> Analysis | Failure | None:
    return _lasting(raw) if "lasting" in raw else analysis_from_dict(raw)


def _lasting(raw: dict[str, Any]) -> Failure | None:
    """A recorded failure, unless its reason has since been found to pass."""
    return None if raw["reason"] in NOT_LASTING else Failure(**raw)
