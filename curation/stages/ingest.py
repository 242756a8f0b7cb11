"""First stage: the bytes of a file to its id."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import MediaError
from curation.sources import SourceFile, video_id_of
from curation.stage import Failure, Stage


class Ingest(Stage[SourceFile, SourceFile]):
    """Reads every byte once. Files that cannot be read fail here."""

    name = "ingest"

    def __init__(self, *, retries: int) -> None:
        self.retries = retries

    def params(self) -> dict[str, Any]:
        return {}

    def process(self, item: SourceFile) -> Sequence[SourceFile | Failure]:
        if item.content_id:
            return [item]
        try:
            return [dataclasses.replace(item, content_id=video_id_of(Path(item.path)))]
        except (FileNotFoundError, PermissionError) as error:
            raise MediaError("unreadable", f"{item.source}: {error.strerror}") from None
