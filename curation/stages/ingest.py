"""First stage: the bytes of a file to its id."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from common.errors import MediaError
from curation.sources import SourceFile, state_of, video_id_of
from curation.stage import Failure, Stage


class Ingest(Stage[SourceFile, SourceFile]):
    """Reads every byte once. Files that cannot be read, or are being written, fail here."""

    name = "ingest"

    def __init__(self, *, retries: int) -> None:
        self.retries = retries

    def params(self) -> dict[str, Any]:
        return {}

    def process(self, item: SourceFile) -> Sequence[SourceFile | Failure]:
        if item.content_id:
            return [item]
        state = state_of(item.path)
        try:
            video_id = video_id_of(item.path)
        except OSError as error:
            detail = f"{item.source}: {error.strerror or error}"
            raise MediaError("unreadable", detail) from None
        if state_of(item.path) != state:
            raise MediaError(
                "being_written",
                f"{item.source} is being written: curate again once it is complete",
            )
        return [dataclasses.replace(item, content_id=video_id, state=state)]
