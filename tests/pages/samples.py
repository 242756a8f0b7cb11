"""Sample curated folders and videos, made without any footage."""

import json
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from cli.demo.page import (
    DemoClip,
    DemoExample,
    DemoPage,
    Learning,
    TokenizerFacts,
)
from common.pages import LossPoint, ValPoint

HOSTILE = (
    "</script><script>window.__pwned=1;alert(1)</script>",
    '<img src=x onerror="window.__pwned=1;alert(2)">',
    "\"'><svg onload=window.__pwned=1>",
    "line one\nline two\u2028line three\u2029</textarea><!--<script>",
    "javascript:window.__pwned=1",
    "&lt;b&gt; ${window.__pwned=1} {{7*7}} \\u003cscript\\u003e",
    "\u202egpj.exe\u202c \u05d0\u05d1\u05d2 \u0627\u0644\u0639\u0631\u0628 \u2066<b>\u2069",
    "a very long name " + "without_an_end" * 60,
)
REASONS = ("low_motion", "blur", "dark")
THRESHOLDS = {"blur": {"min": 40.0, "max": None}, "motion": {"min": 0.004}, "luma": {"min": 20.0}}


def clip_table(num_clips: int, *, num_sources: int = 6, seed: int = 0) -> dict[str, list]:
    """Columns of `clips.parquet`: reasons follow from the scores and `THRESHOLDS`."""
    rng = np.random.default_rng(seed)
    blur = rng.lognormal(4.6, 0.7, num_clips)
    motion = rng.lognormal(-4.2, 0.9, num_clips)
    luma = rng.normal(95, 38, num_clips).clip(2, 250)
    valid_motion = rng.random(num_clips) > 0.02
    checks = [(motion < 0.004) & valid_motion, blur < 40.0, luma < 20.0]
    which = np.select(checks, [0, 1, 2], default=-1)
    source = np.sort(rng.integers(0, num_sources, num_clips))
    length = rng.uniform(2, 9, num_clips).round(3)
    start = (np.arange(num_clips) % 40 * 9.5).round(3)
    subjects = ("A harbour", "Two dancers", "A mountain road", "A cat on a sill", "City lights")
    manners = ("at dusk", "in slow rain", "seen from above", "with a moving camera")
    return {
        "clip_id": [f"{seed:02x}{i:014x}" for i in range(num_clips)],
        "video_id": [f"v{number:04d}" for number in source],
        "source": [f"footage/day {number % 7 + 1}/take_{number:04d}.mp4" for number in source],
        "start_s": start.tolist(),
        "end_s": (start + length).tolist(),
        "kept": (which < 0).tolist(),
        "reject_reason": [None if w < 0 else REASONS[w] for w in which],
        "width": [640] * num_clips,
        "height": [360] * num_clips,
        "fps": [25.0] * num_clips,
        "num_frames": [int(seconds * 25) for seconds in length],
        "caption": [f"{subjects[i % 5]} {manners[i // 5 % 4]}." for i in range(num_clips)],
        "caption_source": ["sidecar"] * num_clips,
        "score_blur": blur.tolist(),
        "valid_blur": [True] * num_clips,
        "score_motion": motion.tolist(),
        "valid_motion": valid_motion.tolist(),
        "score_luma": luma.tolist(),
        "valid_luma": [True] * num_clips,
        "bucket": ["16x9-360p"] * num_clips,
    }


def seconds_by_reason(clips: dict[str, list]) -> tuple[float, dict[str, float]]:
    kept, rejected = 0.0, {}
    rows = zip(clips["kept"], clips["reject_reason"], clips["start_s"], clips["end_s"], strict=True)
    for is_kept, reason, start, end in rows:
        if is_kept:
            kept += end - start
        else:
            rejected[reason] = rejected.get(reason, 0.0) + end - start
    return kept, rejected


def write_folder(
    folder: Path,
    clips: dict[str, list],
    *,
    num_thumbs: int = 24,
    failures: Sequence[dict] = (),
) -> Path:
    """A curated folder as the report reads it; the first `num_thumbs` clips have pictures."""
    thumbs = folder / "report" / "thumbs"
    thumbs.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(clips), folder / "clips.parquet")
    sources = sorted(set(clips["source"]))
    counts = {source: clips["source"].count(source) for source in sources[:200]}
    videos = {
        "video_id": [f"v{i:04d}" for i in range(len(sources))],
        "source": sources,
        "status": ["done"] * len(sources),
        "reason": [None] * len(sources),
        "duration_s": [380.0] * len(sources),
        "width": [640] * len(sources),
        "height": [360] * len(sources),
        "fps": [25.0] * len(sources),
        "codec": ["h264"] * len(sources),
        "num_clips": [counts.get(source, 0) for source in sources],
    }
    pyarrow.parquet.write_table(pyarrow.table(videos), folder / "videos.parquet")
    kept, rejected = seconds_by_reason(clips)
    failed = {"truncated": 4.5} if failures else {}
    summary = {
        "seconds_in": kept + sum(rejected.values()) + sum(failed.values()),
        "seconds_kept": kept,
        "seconds_rejected": rejected,
        "seconds_failed": failed,
        "wall_s": 41.7,
        "bottleneck": "Bottleneck: decoding, 1.9 of 2 cores busy.",
        "thresholds": THRESHOLDS,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    if failures:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in failures)
        (folder / "failed.jsonl").write_text(lines)
    for i, clip_id in enumerate(clips["clip_id"][:num_thumbs]):
        picture(320, 180, phase=i / 7).save(thumbs / f"{clip_id}.jpg", quality=80)
    return folder


def picture(width: int, height: int, *, phase: float) -> Image.Image:
    return Image.fromarray(_field(width, height, phase))


def write_video(path: Path, *, seconds: float = 2.0, phase: float = 0.0, size: int = 96) -> Path:
    """A drifting colour field, H.264, 12 frames/s."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = size * 16 // 9 // 2 * 2, size, "yuv420p"
        for i in range(int(seconds * 12)):
            rgb = _field(stream.width, stream.height, phase + i / 12)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
        container.mux(stream.encode())
    return path


def _field(width: int, height: int, phase: float) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width] / height
    waves = [np.sin(2 * x + phase), np.sin(3 * y - 1.3 * phase), np.sin(2 * (x + y) + 0.7 * phase)]
    return (np.stack(waves, axis=-1) * 70 + 128).astype(np.uint8)


def demo(folder: Path, *, num_clips: int = 16, num_examples: int = 3) -> DemoPage:
    """A first run with videos and pictures in `folder`; its checks pass."""
    table = clip_table(num_clips, seed=3)
    rng = np.random.default_rng(1)
    clips = []
    for i in range(num_clips):
        thumbnail = folder / f"thumb_{i}.jpg"
        picture(320, 180, phase=i / 3).save(thumbnail, quality=80)
        scores = {name: table[f"score_{name}"][i] for name in ("blur", "motion", "luma")}
        clips.append(
            DemoClip(
                label=f"clip {i + 1}",
                source=table["source"][i],
                start_s=table["start_s"][i],
                end_s=table["end_s"][i],
                kept=table["kept"][i],
                reject_reason=table["reject_reason"][i],
                thumbnail=thumbnail,
                caption=table["caption"][i],
                scores=scores,
            )
        )
    examples = []
    for i in range(num_examples):
        kinds = ("real", "reconstructed", "generated", "shuffled")
        paths = {
            kind: write_video(folder / f"{kind}_{i}.mp4", phase=2 * i + shift / 3)
            for shift, kind in enumerate(kinds)
        }
        caption = clips[i].caption
        examples.append(
            DemoExample(caption=caption, clip_label=clips[i].label, psnr_db=31.4 + i, **paths)
        )
    steps = range(0, 400)
    noise = rng.lognormal(0, 0.35, len(steps))
    loss = [LossPoint(step=s, loss=float((0.12 + 0.9 / (1 + s / 25)) * noise[s])) for s in steps]
    val = []
    for step in range(0, 401, 50):
        base = 0.12 + 0.9 / (1 + step / 25)
        per_sigma = {0.1: base * 0.5, 0.5: base * 0.9, 2.0: base * 1.4, 10.0: 0.9 + base * 0.1}
        val.append(ValPoint(step=step, loss=base, per_sigma=per_sigma))
    labels = [clip.label for clip in clips[:6]]
    distances = rng.uniform(0.5, 1.0, (6, 6)) - 0.42 * np.eye(6)
    distances[2, 4] = 0.05  # One caption whose video is nearest to another clip.
    learning = Learning(
        first_val_loss=val[0].loss,
        last_val_loss=val[-1].loss,
        matched=5,
        total=6,
        shuffled_matched=1,
        distances=distances.tolist(),
        row_labels=labels,
        column_labels=labels,
        note="Distance is the mean squared difference of the tokenizer's codes.",
    )
    return DemoPage(
        title="From raw footage to generated video",
        created="2026-01-02 03:04 UTC",
        wall_s={"curate": 38.2, "tokenizer": 61.0, "train": 143.5, "generate": 21.9},
        settings={
            "curate": {"input": "footage", "blur": {"min": 40.0}, "stages": ["split", "score"]},
            "pretrain": {"model": {"depth": 6, "width": 192}, "lr": 0.001, "resume": None},
        },
        clips=clips,
        loss=loss,
        val=val,
        learning=learning,
        tokenizer=TokenizerFacts(
            quality={"This tokenizer": (32.4, 0.921), "3D DCT": (30.1, 0.887)},
            compression="8 x 8 pixels and 4 frames into 16 numbers",
            how="It was trained on the kept clips for 300 steps.",
        ),
        examples=examples,
        machine={"Processor": "2 cores", "Memory": "8 GB", "Python": "3.11", "PyTorch": "2.13"},
        version="0.1.0",
    )
