"""`vfm data`: looks at, checks and indexes a folder of WebDataset shards."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError, DataError, VfmError, nearest

if TYPE_CHECKING:
    from common.store_path import Place
    from dataloading.schema import EncodedWith

HELP = """
look at a folder of shards, check every clip in it, or index it

usage: vfm data info DIR [token_budget=N num_frames=[N,...] size=[W,H] fps=F resize=crop|area]
       vfm data peek DIR [output=FILE.html clips=N]
       vfm data verify DIR [num_threads=N]
       vfm data index DIR

info    clips, seconds, shapes, rates, captions, and how full packs for training would be
peek    first frames and captions on one page, which is one file
verify  reads everything again: checksums, tars, indexes, every picture, every caption; names each
        defect as SHARD: MEMBER: WHAT: VALUE, and ends with exit code 1 if there is any

index   writes where every sample lies, NAME.parts.arrow beside each tar and parts.json, so that
        dataloading.samples opens the folder at once; again after shards were added or changed

DIR is the output of `vfm curate`, a folder prepared by megatron-energon, or any folder of tars; or
the URL of one in an object store (s3://bucket/folder, gs://..., az://...).

examples:
  vfm data info curated
  vfm data info curated token_budget=16384 num_frames=[17,33,65] size=[512,288]
  vfm data peek curated output=sheet.html clips=120
  vfm data verify curated num_threads=8
  vfm data index folder_of_tars
  vfm data info s3://bucket/curated
"""

ACTIONS = ("info", "peek", "verify", "index")
INTERRUPTED = "nothing was changed; the same command starts again"


@dataclass(frozen=True, kw_only=True)
class InfoSettings:
    """What packing is told for; the defaults are those of `vfm pretrain`."""

    token_budget: int = 8192
    num_frames: list[int] = dataclasses.field(default_factory=lambda: [1, 17, 33])
    size: list[int] = dataclasses.field(default_factory=lambda: [256, 256])
    resize: str = "area"
    fps: float | None = 24.0


@dataclass(frozen=True, kw_only=True)
class PeekSettings:
    output: str = "peek.html"
    clips: int = 60


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """It has none; a word that looks like one is refused."""


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    num_threads: int | None = None
    """None takes as many as there are processor threads."""


def run(argv: list[str]) -> int:
    from common.remote import is_url

    action = argv[0] if argv else ""
    if action not in ACTIONS:
        raise VfmError(
            (f"vfm data does not know '{action}'{nearest(action, ACTIONS)}; " if argv else "")
            + f"usage: vfm data {'|'.join(ACTIONS)} DIR [KEY=VALUE ...]"
        )
    from common.store_path import StorePath

    folders = [word for word in argv[1:] if "=" not in word or is_url(word) or Path(word).is_dir()]
    words = [word for word in argv[1:] if word not in folders]
    if len(folders) != 1 or not folders[0].strip():
        raise VfmError(f"vfm data {action} takes one folder: vfm data {action} DIR [KEY=VALUE ...]")
    path = StorePath(folders[0]) if is_url(folders[0]) else Path(folders[0])
    if action == "info":
        return _info(path, settings(InfoSettings, words))
    if action == "peek":
        return _peek(path, settings(PeekSettings, words))
    if action == "index":
        settings(IndexSettings, words)
        return _index(path)
    return _verify(path, settings(VerifySettings, words))


def settings(schema: type, words: list[str]) -> Any:
    """`KEY=VALUE` words over the defaults of a dataclass, with the refusals of `cli.schema`."""
    import yaml

    import cli.schema as schemas

    values = schemas.defaults(schema)
    for word in words:
        key, _, typed = word.partition("=")
        hint = schemas.type_at(schema, key)
        try:
            values[key] = typed if schemas.is_text(hint) else yaml.safe_load(typed)
        except yaml.YAMLError:
            raise ConfigError(f"{word}: {schemas.describe(hint)} is needed") from None
    built = schemas.build(schema, values)
    for name in ("clips", "num_threads"):
        value = getattr(built, name, None)
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: at least 1 is needed")
    return built


def _info(path: "Place", chosen: InfoSettings) -> int:
    from common.pages import counted, duration
    from dataloading.defects import printable
    from dataloading.folder import open_folder
    from dataloading.info import contents

    folder = open_folder(path)
    found = contents(folder)
    about = "" if found.complete else "about "
    kinds = {
        "curated": "curated by vfm",
        "energon": "prepared by megatron-energon",
        "webdataset": "WebDataset tars without an index",
    }
    rows = [
        ("folder", f"{printable(str(path))}, {kinds[folder.kind]}"),
        ("shards", f"{found.num_shards:,}, {found.num_bytes:,} bytes"),
        ("clips", f"{found.num_clips:,}"),
        ("footage", f"{about}{duration(found.seconds)} ({found.seconds:,.1f} s)"),
        ("shapes", _commonest({f"{w}x{h}": n for (w, h), n in found.shapes.items()})),
        ("frames/s", _commonest({f"{rate:g}": n for rate, n in found.fps.items()})),
        ("captions", f"{found.num_captions:,} of {counted(found.num_probed, 'clip')}"),
    ]
    if not found.complete:
        rows.append(("looked at", f"{found.num_probed:,} clips, spread evenly"))
    if folder.manifest is not None:
        rows += _packing(folder.root.parent, chosen, folder.manifest.encoded)
    else:
        rows.append(("packing", "not known: it is planned from the index that vfm curate writes"))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    for fault in found.unreadable:
        print(f"cannot be read: {printable(fault)}")
    return 1 if found.unreadable else 0


def _packing(
    path: "Place", chosen: InfoSettings, encoded: "EncodedWith | None"
) -> list[tuple[str, str]]:
    """How the loader would fill packs of all clips; or why it cannot."""
    from dataloading.config import Compression, LoaderConfig
    from dataloading.info import packing

    compression = Compression()
    if encoded is not None:
        tokenizer = encoded.tokenizer
        compression = Compression(temporal=tokenizer["temporal"], spatial=tokenizer["spatial"])
        chosen = dataclasses.replace(chosen, **encoded.data)
    set_to = " ".join(f"{k}={v}" for k, v in dataclasses.asdict(chosen).items()).replace(", ", ",")
    config = LoaderConfig(path=str(path), **dataclasses.asdict(chosen))
    config.check(compression)
    try:
        packs = packing(config, compression)
    except DataError as error:
        return [("packing", set_to), ("", f"none: {error}")]
    lengths = ", ".join(f"{t}: {n:,}" for t, n in packs["clips_that_fit"].items())
    return [
        ("packing", set_to),
        (
            "",
            f"tokens of {compression.temporal}x{compression.spatial}x{compression.spatial} "
            f"compression in patches of {'x'.join(map(str, compression.patch))}",
        ),
        ("", f"packs are {packs['fill']:.1%} full, {packs['samples_per_pack']:.1f} clips each"),
        ("", f"{packs['tokens_per_epoch']:,.0f} tokens an epoch"),
        ("", f"clips with room for a window of so many frames: {lengths}"),
        ("", f"too short for any: {packs['too_short']:,}"),
    ]


def _commonest(counts: dict[str, int], most: int = 8) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f", and {len(ranked) - most} more" if len(ranked) > most else ""
    return ", ".join(f"{name} ({n:,})" for name, n in ranked[:most]) + more


def _peek(path: "Place", chosen: PeekSettings) -> int:
    from common.storage import write_atomic
    from dataloading.folder import open_folder
    from dataloading.info import contents
    from dataloading.peek import contact_sheet

    folder = open_folder(path)
    found = contents(folder)
    output = Path(chosen.output)
    with _bar() as bar:
        task = bar.add_task("peek", total=min(chosen.clips, found.num_clips))
        html = contact_sheet(folder, found, clips=chosen.clips, tick=lambda: bar.advance(task))
    write_atomic(output, html.encode("utf-8"))
    print(output.resolve())
    return 0


def _verify(path: "Place", chosen: VerifySettings) -> int:
    from cli.commands.doctor import num_threads
    from common.pages import counted
    from dataloading.folder import open_folder
    from dataloading.verify import verify

    folder = open_folder(path)
    threads = chosen.num_threads or num_threads()
    num_defects = num_clips = num_shards = num_bytes = 0
    with _bar() as bar:
        shards = bar.add_task("shards", total=len(folder.shards))
        clips = bar.add_task("clips", total=sum(folder.counts.values()))
        for checked in verify(folder, num_threads=threads):
            for defect in checked.defects:
                bar.console.print(
                    defect.line(), markup=False, highlight=False, soft_wrap=True, emoji=False
                )
            num_defects += len(checked.defects)
            num_shards += checked.is_shard
            num_clips += checked.is_clip
            num_bytes += checked.shard_bytes
            bar.update(shards, completed=num_shards)
            known = max(sum(folder.counts.values()), num_clips)
            bar.update(clips, completed=num_clips, total=known)
    said = f"{counted(num_shards, 'shard')}, {counted(num_clips, 'clip')}, {num_bytes:,} bytes"
    print(f"{said}: {counted(num_defects, 'defect') if num_defects else 'no defects'}")
    return 1 if num_defects else 0


def _index(path: "Place") -> int:
    from common.pages import counted
    from dataloading.defects import printable
    from dataloading.indexing import index_folder

    with _bar() as bar:
        task = bar.add_task("index", total=None)
        found = index_folder(path, tick=lambda: bar.advance(task))
    print(f"{counted(found.num_shards, 'shard')}, {counted(found.num_samples, 'sample')} indexed")
    for fault in found.faults:
        print(f"cannot be read: {printable(fault)}")
    return 1 if found.faults else 0


def _bar() -> Any:
    """On a terminal only; defects and results go to standard output, whole lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
