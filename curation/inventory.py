"""The sources of a curated folder: under which names their bytes lie, and what is said of them."""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict

from common.errors import MediaError
from curation.captions import Captions
from curation.ledger import KnownSource, Ledger
from curation.sources import SourceFile, state_of
from curation.stage import Failure
from curation.stages.ingest import Ingest


class Inventory:
    """Keeps the ledger's sources true to the input as it lies there now.

    Call `known` and `remember` for each file of the input, then `settle`; then `locate` gives the
    files to decode.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._present: set[tuple[str, str]] = set()
        """(video id, path) of this input."""

    def known(self, file: SourceFile) -> SourceFile:
        """The same file, with its id where it has not changed since it was hashed."""
        try:
            state = file.state or state_of(file.path)
        except MediaError:
            return file  # ingest meets the same and says so
        known = self._ledger.known_file(file.path, state.num_bytes, state.modified_ns)
        if known is None:
            return file
        return dataclasses.replace(file, content_id=known, state=state)

    def remember(self, file: SourceFile, captions: Captions) -> None:
        """Takes a file with its id. The first name under which bytes came is the original."""
        self._remember_file(file)
        self._present.add((file.content_id, file.path))
        names = self._ledger.sources_of(file.content_id)
        # A part of an earlier input is the same file under a shorter name, not a copy.
        same = [s for s in names if s.source == file.source] or [
            s for s in names if s.path == file.path
        ]
        name = same[0].source if same else file.source
        now = KnownSource(
            video_id=file.content_id,
            source=name,
            path=file.path,
            duplicate=any(not s.duplicate and s.source != name for s in names),
            captions=json.loads(json.dumps(asdict(captions))),
        )
        if now not in names:  # a write takes its time, and most files are as they were
            self._ledger.remember_source(now)

    def settle(
        self, root: str, unread: Collection[str], sharded: Callable[[], Collection[str]]
    ) -> None:
        """Drops names whose file is gone or holds other bytes now, so that mended and renamed
        files leave no trace of what they were.

        A video of which shards hold clips keeps its original name, which stands in the shards.

        Args:
            root: the input; nothing is said of files that lie elsewhere.
            unread: paths that are there but could not be read.
            sharded: ids of videos; asked for only where a file is gone.
        """
        paths: dict[str, str] = {}
        for video_id, path in sorted(self._present):
            paths.setdefault(video_id, path)
        with self._ledger.together():
            for source in self._ledger.sources():
                here = source.path == root or source.path.startswith(root.rstrip("/") + "/")
                present = (source.video_id, source.path) in self._present
                if not here or present or source.path in unread:
                    continue
                if source.duplicate or source.video_id not in sharded():
                    self._ledger.forget_source(source)
                elif source.video_id in paths:
                    moved = dataclasses.replace(source, path=paths[source.video_id])
                    self._ledger.remember_source(moved)
            self._promote()

    def locate(self, source: KnownSource) -> SourceFile:
        """A file that holds a video's bytes right now.

        Raises `MediaError`: `missing` where no name of the video leads to them any more.
        """
        names = sorted(self._ledger.sources_of(source.video_id), key=lambda s: s.duplicate)
        for path in dict.fromkeys([source.path, *(s.path for s in names)]):
            file = self.known(SourceFile(source=source.source, path=path))
            if not file.content_id:
                try:
                    (file,) = Ingest(retries=0).process(file)
                except MediaError:
                    continue
                assert isinstance(file, SourceFile)
                self._remember_file(file)
            if file.content_id == source.video_id:
                return file
        raise MediaError(
            "missing", f"{source.source}: {source.path} is gone or holds another video now"
        )

    def _promote(self) -> None:
        """The first name of a video without an original becomes its original."""
        sources = self._ledger.sources()
        have = {source.video_id for source in sources if not source.duplicate}
        for source in sources:
            if source.video_id not in have:
                have.add(source.video_id)
                self._ledger.remember_source(dataclasses.replace(source, duplicate=False))

    def _remember_file(self, file: SourceFile) -> None:
        assert file.state is not None
        state = file.path, file.state.num_bytes, file.state.modified_ns
        if self._ledger.known_file(*state) != file.content_id:
            self._ledger.remember_file(*state, file.content_id)


def in_order(
    files: Sequence[SourceFile], results: Iterable[SourceFile | Failure]
) -> Iterator[tuple[SourceFile, SourceFile | Failure]]:
    """One result for each file, in the order of the files, however they come."""
    early: dict[str, SourceFile | Failure] = {}
    waiting = iter(files)
    file = next(waiting, None)
    for result in results:
        early[result.label] = result
        while file is not None and file.label in early:
            yield file, early.pop(file.label)
            file = next(waiting, None)
    assert file is None, f"nothing came back of {file.label}"
