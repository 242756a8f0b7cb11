"""A contact sheet of a folder of shards: first frames and captions, as one HTML file."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from common.errors import MediaError
from common.media import VideoReader
from common.pages import FOREIGN, counted, duration, key_figures, page, text
from dataloading.folder import ShardFolder, TarSample, described, list_tar, read_member, samples_of
from dataloading.info import Contents, evenly

_WIDTH_PX = 320
_JPEG_QUALITY = 80


@dataclass(frozen=True, kw_only=True)
class Card:
    """One clip on the sheet; `picture` is a `data:` address, empty where `fault` says why."""

    key: str
    shard: str
    caption: str | None
    about: str
    picture: str = ""
    fault: str = ""


def contact_sheet(
    folder: ShardFolder, found: Contents, *, clips: int, tick: Callable[[], object]
) -> str:
    """The page, for `clips` clips spread evenly over the shards; `tick` is called after each.

    Captions and names are shown as text whatever they hold: nothing of them is markup.
    Raises `DataError` where a shard cannot be read.
    """
    samples = [
        sample
        for shard in folder.shards
        for sample in samples_of(shard, list_tar(folder.root / shard)[0])
        if sample.video is not None
    ]
    cards = []
    for sample in evenly(samples, clips):
        cards.append(_card(folder, sample))
        tick()
    name = folder.path.resolve().name
    shown = f"{len(cards):,} of {counted(len(samples), 'clip')}"
    items = "".join(_markup(card) for card in cards)
    about = "" if found.complete else "about "
    figures = key_figures(
        [
            ("Clips", f"{found.num_clips:,}", f"in {counted(found.num_shards, 'shard')}"),
            ("Footage", f"{about}{duration(found.seconds)}", ""),
            ("Size", f"{found.num_bytes / 2**20:,.1f} MiB", ""),
        ]
    )
    body = (
        f'<header class="wrap"><h1 {FOREIGN}>{text(name)}</h1>'
        f'<p class="lede">First frames and captions of {shown}, spread evenly over the shards.</p>'
        f'{figures}</header><main id="main" class="wrap"><ul class="sheet">{items}</ul></main>'
    )
    return page(title=f"Contact sheet: {name}", body=body, styles=[], scripts=[], data={})


def _card(folder: ShardFolder, sample: TarSample) -> Card:
    assert sample.video is not None
    _, caption = described(folder.root, sample)
    picture = about = fault = ""
    try:
        with VideoReader(read_member(folder.root, sample.shard, sample.video)) as reader:
            info = reader.info
            about = (
                f"{info.width}x{info.height}, {info.fps:.3g} frames/s, {duration(info.duration_s)}"
            )
            picture = _first_frame(reader)
    except MediaError as error:
        fault = str(error)
    return Card(
        key=sample.key,
        shard=sample.shard,
        caption=caption,
        about=about,
        picture=picture,
        fault=fault,
    )


def _first_frame(reader: VideoReader) -> str:
    """As a JPEG of at most `_WIDTH_PX` width, in a `data:` address."""
    first = next(reader.frames(), None)
    if first is None:
        raise MediaError("decode_failed", "not one good picture")
    width, height = reader.display_size(first.picture)
    shrink = max(1.0, width / _WIDTH_PX, height / _WIDTH_PX)
    size = max(1, round(width / shrink)), max(1, round(height / shrink))
    file = io.BytesIO()
    Image.fromarray(reader.rgb(first.picture, size=size)).save(file, "JPEG", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _markup(card: Card) -> str:
    shown = (
        f'<img src="{text(card.picture)}" alt="First frame of {text(card.key)}">'
        if card.picture
        else "no picture"
    )
    says = "no caption" if not card.caption else card.caption
    kind = FOREIGN if card.caption else 'class="muted"'
    fault = f"<div class='meta'><span {FOREIGN}>{text(card.fault)}</span></div>"
    return (
        f'<li class="card"><div class="thumb">{shown}</div>'
        f'<div class="caption"><span {kind}>{text(says)}</span></div>'
        f'<div class="meta"><span {FOREIGN}>{text(card.key)}</span></div>'
        f'<div class="meta">{text(card.about)}</div>'
        f'<div class="meta"><span {FOREIGN}>{text(card.shard)}</span></div>'
        f"{fault if card.fault else ''}</li>"
    )
