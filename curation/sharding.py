"""Encodes what is kept and packs it: added to the shards of a folder, or all of them anew."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from common.errors import MediaError
from common.storage import atomic_folder
from common.store_path import Place
from curation.config import CurateConfig
from curation.executors.local import LocalExecutor
from curation.inventory import Inventory
from curation.memory import Work
from curation.pipeline import Executor, Graph
from curation.progress import progress_on
from curation.results import Collected
from curation.scores import Crop
from curation.shard import Packer, ShardedClip
from curation.spool import EncodedClip
from curation.stage import Failure, failure_of
from curation.stages.transcode import (
    ClipOrder,
    SourceOrder,
    Transcode,
    encoded_size,
    even_box,
)
from curation.tables import ClipRow
from dataloading.energon import write_energon
from dataloading.schema import Manifest


class Sharder:
    """The step from decided clips to shards.

    Clips that cannot be encoded fail in the `Collected` that they come from, one by one.
    """

    def __init__(
        self,
        config: CurateConfig,
        output: Place,
        inventory: Inventory,
        work: Work,
        executor: Executor,
        console: Console,
    ) -> None:
        self._config = config
        self._shards = output / "shards"
        self.transcode = Transcode(
            config.transcode, output / "ledger" / "spool", retries=config.retries
        )
        self._inventory = inventory
        self._work = work
        self._executor = executor
        self._console = console

    def check(self) -> None:
        """Raises `ConfigError` where the encoder that is asked for does not work. Other machines
        than this one find out for themselves."""
        if isinstance(self._executor, LocalExecutor):
            self.transcode.setup()

    def place(self, found: Collected, encoded: Collection[str] | None = None) -> None:
        """Notes in which bucket each kept clip belongs, and what has an encoding.

        Args:
            encoded: which clips the shards hold; None where all that is kept is about to be there.
        """
        for clip in found.clips:
            if encoded is None:
                hash_ = self.transcode.params_hash if clip.kept else None
            else:
                hash_ = clip.transcode_hash if clip.clip_id in encoded else None
            found.place(clip.clip_id, self._bucket(clip) if clip.kept else None, hash_)

    def append(
        self, found: Collected, manifest: Manifest, sharded: Mapping[str, ShardedClip]
    ) -> None:
        """Adds shards of the kept clips that no shard holds yet; those that are there stay."""
        self.place(found)
        spool = self.transcode.spool
        spool.forget(clip_id for clip_id in spool.clip_ids() if clip_id in sharded)
        new = [clip for clip in found.clips if clip.kept and clip.clip_id not in sharded]
        packer = Packer(
            self._shards,
            manifest,
            {clip.clip_id: self._bucket(clip) for clip in new},
            {clip.clip_id: self._describe(clip) for clip in new},
            self._config.shard.target_bytes,
            self._config.shard.buckets,
            content=spool.read,
            packed=spool.forget,
            noted=True,
            may_write=self._work.may_write,
        )
        for result in self._encode(found, new):
            if isinstance(result, EncodedClip):
                packer.add(result)
            else:
                packer.skip(result)
        manifest = packer.finish()
        if manifest.shards:
            self._work.may_write()
            write_energon(self._shards, manifest)

    def rewrite(self, found: Collected, sharded: Mapping[str, ShardedClip]) -> None:
        """Makes all shards anew from what is kept, then puts them in the place of the old ones, in
        one step. Encodings are copied from there."""
        assert isinstance(self._shards, Path), "folders of a store cannot be exchanged"
        self.place(found)
        kept = [clip for clip in found.clips if clip.kept]
        new = [clip for clip in kept if clip.clip_id not in sharded]
        encoded = [c for c in self._encode(found, new) if isinstance(c, EncodedClip)]
        kept = [clip for clip in found.clips if clip.kept]
        encoded += [sharded[c.clip_id].encoded for c in kept if c.clip_id in sharded]

        def content(clip_id: str) -> bytes:
            there = sharded.get(clip_id)
            return self.transcode.spool.read(clip_id) if there is None else there.read()

        with atomic_folder(self._shards) as folder:
            packer = Packer(
                folder,
                Manifest(),
                {clip.clip_id: self._bucket(clip) for clip in kept},
                {clip.clip_id: self._describe(clip) for clip in kept},
                self._config.shard.target_bytes,
                self._config.shard.buckets,
                content=content,
                packed=lambda clip_ids: None,
            )
            for clip in encoded:
                packer.add(clip)
            write_energon(folder, packer.finish())
        self.transcode.spool.forget(clip.clip_id for clip in new)

    def _encode(self, found: Collected, clips: Sequence[ClipRow]) -> Iterator[EncodedClip | str]:
        """Each clip encoded, or its id where it failed; in any order."""
        todo: list[ClipOrder] = []
        for clip in clips:
            order = self._order(clip)
            before = self._work.encoded(self.transcode, order)
            if before is None:
                todo.append(order)
            elif isinstance(before, Failure):
                yield self._failed(found, clip.clip_id, before)
            else:
                yield before
        if not todo:
            return
        with progress_on(self._console, self._executor) as progress:
            done = len(clips) - len(todo)
            task = progress.add_task("shard", total=len(clips), completed=done)
            for result in self._results(found, todo):
                yield result
                progress.advance(task)

    def _results(self, found: Collected, todo: Sequence[ClipOrder]) -> Iterator[EncodedClip | str]:
        lost: list[tuple[str, Failure]] = []
        items = self._sources_of(todo, found, lambda *failed: lost.append(failed))
        graph = Graph.chain([self.transcode])
        for result in self._executor.run(
            graph, items, self._work.memory, total=len({order.content_id for order in todo})
        ):
            if isinstance(result, EncodedClip):
                yield result
            elif result.span:
                lost.append((result.label, result))
            else:  # a whole source failed, so each of its clips did
                of_source = [o for o in todo if o.content_id == result.content_id]
                lost += [(order.clip_id, result) for order in of_source]
            while lost:
                yield self._failed(found, *lost.pop())
        while lost:
            yield self._failed(found, *lost.pop())

    def _sources_of(
        self,
        orders: Sequence[ClipOrder],
        found: Collected,
        lose: Callable[[str, Failure], None],
    ) -> Iterator[SourceOrder]:
        """One item per source, in order of id, so that tars fill up from the front. Clips of
        sources that are gone are lost."""
        by_id: dict[str, list[ClipOrder]] = {}
        for order in sorted(orders, key=lambda o: (o.content_id, o.start_us)):
            by_id.setdefault(order.content_id, []).append(order)
        damaged = {video.video_id for video in found.videos if video.num_errors}
        for content_id, clips in by_id.items():
            source = found.sources[content_id]
            try:
                file = self._inventory.locate(source)
            except MediaError as error:
                for clip in clips:
                    lose(clip.clip_id, failure_of(clip, self.transcode.name, 1, error))
                continue
            yield SourceOrder(
                content_id=content_id,
                source=source.source,
                path=file.path,
                state=file.state,
                clips=clips,
                num_threads=1 if content_id in damaged else 0,
            )

    def _failed(self, found: Collected, clip_id: str, failure: Failure) -> str:
        found.clip_failed(clip_id, failure)
        return clip_id

    def _box(self, clip: ClipRow) -> Crop | None:
        return even_box(clip.crop) if self._config.transcode.crop else None

    def _size(self, clip: ClipRow) -> tuple[int, int]:
        box = self._box(clip)
        width, height = (clip.width, clip.height) if box is None else box[2:]
        return encoded_size(width, height, self._config.transcode.max_short_side_px)

    def _bucket(self, clip: ClipRow) -> str:
        return self._config.shard.buckets.of(*self._size(clip), clip.seconds)

    def _order(self, clip: ClipRow) -> ClipOrder:
        width, height = self._size(clip)
        return ClipOrder(
            clip_id=clip.clip_id,
            content_id=clip.video_id,
            start_us=clip.start_us,
            end_us=clip.end_us,
            num_frames=clip.num_frames,
            width=width,
            height=height,
            box=self._box(clip),
        )

    def _describe(self, clip: ClipRow) -> dict[str, Any]:
        """The JSON member beside a clip."""
        width, height = self._size(clip)
        return {
            "clip_id": clip.clip_id,
            "video_id": clip.video_id,
            "source": clip.source,
            "start_s": clip.start_us / 1e6,
            "end_s": clip.end_us / 1e6,
            "duration_s": clip.seconds,
            "width": width,
            "height": height,
            "crop": self._box(clip),
            "fps": clip.fps,
            "num_frames": clip.num_frames,
            "caption": clip.caption or "",
            "caption_source": clip.caption_source,
            "scores": {name: s.value for name, s in clip.scores.items() if s.valid},
        }
