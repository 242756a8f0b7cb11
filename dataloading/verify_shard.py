"""One shard against all that is said of it: manifest, our index, megatron-energon's index, and the
tar itself."""

import hashlib
import sqlite3
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from common.errors import DataError, MediaError
from common.remote import chunks
from common.store_path import Place, StorePath, bytes_of
from dataloading.buckets import Buckets
from dataloading.defects import Defect
from dataloading.encoded import SUFFIX
from dataloading.energon import META_FOLDER
from dataloading.folder import Member, ShardFolder, TarSample, energon_counts, list_tar, samples_of
from dataloading.schema import ShardInfo, read_index
from dataloading.verify_clip import ClipJob, Stated

Rows = dict[tuple[int, str], tuple[int, int]]
"""megatron-energon's sample number and part to offset and bytes."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """What the folder says of its shards, by path; `energon` is none where it was not prepared."""

    infos: dict[str, ShardInfo]
    energon: dict[str, int] | None
    buckets: Buckets | None
    encoded: bool
    """Whether it holds encoded windows and no clips."""

    @staticmethod
    def of(folder: ShardFolder) -> "Records":
        manifest = folder.manifest
        prepared = (folder.root / META_FOLDER).is_dir()
        return Records(
            infos={shard.path: shard for shard in manifest.shards} if manifest else {},
            energon=energon_counts(folder.root) if prepared else None,
            buckets=manifest.buckets if manifest else None,
            encoded=manifest is not None and manifest.encoded is not None,
        )


@dataclass(kw_only=True)
class ShardCheck:
    """What was found, and the clips that are still to be looked into."""

    shard: str
    num_bytes: int = 0
    defects: list[Defect] = field(default_factory=list)
    jobs: list[ClipJob] = field(default_factory=list)

    def note(self, what: str, value: str, member: str = "") -> None:
        self.defects.append(Defect(shard=self.shard, member=member, what=what, value=value))


def check_shard(folder: ShardFolder, records: Records, shard: str) -> ShardCheck:
    """Raises nothing for bad data."""
    check = ShardCheck(shard=shard)
    path = folder.root / shard
    info = records.infos.get(shard)
    try:
        found = bytes_of(path)
        if found is None:
            raise FileNotFoundError
        check.num_bytes = found
        if info is not None:
            _check_bytes(check, path, info)
        members, faults = list_tar(path)
    except FileNotFoundError:
        check.note("missing_shard", "the file is not there")
        return check
    except (OSError, DataError, MediaError) as error:
        check.note("unreadable", str(error))
        return check
    for fault in faults:
        check.note("damaged_tar", fault)
    for name, count in Counter(member.name for member in members).items():
        if count > 1:
            check.note("repeated_member", f"the tar holds {count} files of this name", name)
    samples = list(samples_of(shard, members))
    if info is not None:
        _check_index(check, folder.root, info, members, records, cut=bool(faults))
    else:
        _check_samples(check, samples)
    if records.energon is not None:
        _check_energon(check, folder.root, records.energon, samples)
    return check


def _check_bytes(check: ShardCheck, path: Place, info: ShardInfo) -> None:
    if check.num_bytes != info.num_bytes:
        said = f"{check.num_bytes} bytes, the manifest says {info.num_bytes}"
        check.note("wrong_bytes", said)
    sha256 = hashlib.sha256()
    for chunk in chunks(str(path)):
        sha256.update(chunk)
    digest = sha256.hexdigest()
    if digest != info.sha256:
        check.note("wrong_checksum", f"sha256 {digest}, the manifest says {info.sha256}")


def _check_index(
    check: ShardCheck,
    root: Place,
    info: ShardInfo,
    members: list[Member],
    records: Records,
    *,
    cut: bool,
) -> None:
    """Index against manifest and tar; the clips are looked for where the index says they are."""
    path = root / info.index_path
    try:
        table = read_index(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except (DataError, OSError) as error:
        check.note("unreadable_index", str(error), info.index_path)
        _check_samples(check, list(samples_of(info.path, members)))
        return
    if digest != info.index_sha256:
        said = f"sha256 {digest}, the manifest says {info.index_sha256}"
        check.note("wrong_checksum", said, info.index_path)
    if table.num_rows != info.num_clips:
        said = f"{table.num_rows} clips, the manifest says {info.num_clips}"
        check.note("wrong_num_clips", said, info.index_path)
    rows = table.to_pylist()
    total_s = sum(row["duration_s"] for row in rows)
    if abs(total_s - info.duration_s) > 1e-3:
        said = f"{total_s:.3f} s of clips, the manifest says {info.duration_s:.3f}"
        check.note("wrong_duration", said, info.index_path)
    in_tar = {member.name: member for member in members}
    bucket, buckets = info.path.rpartition("/")[0], records.buckets
    video_suffix = SUFFIX if records.encoded else ".mp4"
    for row in rows:
        right = buckets.of(row["width"], row["height"], row["duration_s"]) if buckets else bucket
        if right != bucket:
            said = f"in {bucket}, its shape and length belong to {right}"
            check.note("wrong_bucket", said, row["clip_id"])
        found: list[Member] = []
        for part, suffix in (("video", video_suffix), ("json", ".json")):
            name = row["clip_id"] + suffix
            at, size = row[f"{part}_offset"], row[f"{part}_bytes"]
            there = in_tar.pop(name, None)
            if there is None and not cut:
                check.note("missing_member", "the index names it, the tar has it not", name)
            elif there is not None and (there.offset, there.num_bytes) != (at, size):
                check.note(
                    "wrong_index",
                    f"{there.num_bytes} bytes at {there.offset}, the index says {size} at {at}",
                    name,
                )
            # Behind a damaged header no tar reader finds a file, and the index still does.
            if there is None and cut and at + size <= check.num_bytes:
                there = Member(name=name, begin=at, offset=at, num_bytes=size)
            if there is None and cut:
                check.note("missing_member", "it lies past the end of the file", name)
            if there is not None:
                found.append(there)
        named = {member.name.rpartition(".")[2]: member for member in found}
        check.jobs.append(
            ClipJob(
                shard=info.path,
                key=row["clip_id"],
                video=named.get("mp4"),
                json=named.get("json"),
                tensors=named.get(SUFFIX[1:]),
                stated=Stated(
                    by="the index",
                    num_frames=row["num_frames"],
                    width=row["width"],
                    height=row["height"],
                    fps=row["fps"],
                    duration_s=row["duration_s"],
                    caption_bytes=row["caption_bytes"],
                    keyframes_s=tuple(row["keyframes_s"]),
                ),
            )
        )
    for name in in_tar:
        check.note("not_in_index", "the tar has it, the index does not name it", name)


def _check_samples(check: ShardCheck, samples: list[TarSample]) -> None:
    """Samples among themselves, where no index says what should be there."""
    counts = Counter(ext for sample in samples for ext in sample.parts)
    usual = {ext for ext, count in counts.items() if 2 * count > len(samples)}
    seen: set[str] = set()
    for sample in samples:
        if sample.key in seen:
            check.note("split_sample", "its files lie apart, with others between them", sample.key)
        seen.add(sample.key)
        for ext in sorted(usual - set(sample.parts)):
            said = f"has no .{ext}, as {counts[ext]} of {len(samples)} samples have"
            check.note("missing_member", said, sample.key)
        check.jobs.append(
            ClipJob(
                shard=check.shard,
                key=sample.key,
                video=sample.video,
                json=sample.json,
                texts=tuple(m for m in (sample.text,) if m is not None),
            )
        )


def _check_energon(
    check: ShardCheck, root: Place, counts: dict[str, int], samples: list[TarSample]
) -> None:
    """`.nv-meta` and `NAME.tar.idx` against the tar; only the first difference of each is told."""
    again = "run `energon prepare` again"
    if check.shard not in counts:
        check.note("energon_unlisted", f".nv-meta does not name it; {again}")
        return
    if counts[check.shard] != len(samples):
        said = f"{len(samples)} samples, .nv-meta says {counts[check.shard]}; {again}"
        check.note("energon_count", said)
    idx = root / f"{check.shard}.idx"
    try:
        offsets = np.frombuffer(idx.read_bytes(), dtype="<u8")[:-1].tolist()
    except (OSError, ValueError) as error:
        check.note("energon_offsets", f"{idx.name} cannot be read: {error}; {again}")
    else:
        begins = [min(m.begin for m in sample.parts.values()) for sample in samples]
        if offsets != begins:
            at = next(
                (i for i, (a, b) in enumerate(zip(offsets, begins, strict=False)) if a != b),
                min(len(offsets), len(begins)),
            )
            check.note("energon_offsets", f"{idx.name} is wrong from sample {at} on; {again}")
    try:
        rows = _energon_rows(root / META_FOLDER / "index.sqlite", list(counts).index(check.shard))
    except sqlite3.Error as error:
        check.note("energon_index", f"index.sqlite cannot be read: {error}; {again}")
        return
    if rows is None:
        return
    there = {
        (i, ext): (member.offset, member.num_bytes)
        for i, sample in enumerate(samples)
        for ext, member in sample.parts.items()
    }
    differing = sorted(k for k in {*rows, *there} if rows.get(k) != there.get(k))
    if differing:
        number, ext = differing[0]
        key = samples[number].key if number < len(samples) else f"sample {number}"
        said = f"index.sqlite is wrong about {len(differing)} files of this shard; {again}"
        check.note("energon_index", said, f"{key}.{ext}")


def _energon_rows(path: Place, number: int) -> Rows | None:
    """The parts of one shard; none where there is no such index, as before megatron-energon 6, or
    in an object store, where SQLite cannot read it."""
    if isinstance(path, StorePath) or not path.is_file():
        return None
    database = sqlite3.connect(f"file:{path.absolute().as_posix()}?mode=ro", uri=True)
    try:
        found = database.execute(
            "SELECT sample_index, part_name, content_byte_offset, content_byte_size "
            "FROM sample_parts WHERE tar_file_id = ?",
            (number,),
        )
        return {(i, part): (at, size) for i, part, at, size in found}
    finally:
        database.close()
