"""What it costs to read samples, to save and restore, and what a change of ranks loses."""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import _loader_peers as peers
from benchmarks._apart import apart, cpu_s_used
from benchmarks._loader_data import make_curated, make_shards
from benchmarks.row import Row

HELP = """
reading whole samples, decoding them, restoring, and changing ranks, beside other loaders

read     whole samples of equal tars (about 85 KB: random bytes, a video, a JSON), page cache warm.
         Every subject's consumer takes each part as bytes of its own and parses the JSON. In one
         process, and with two workers where the subject has any. Samples come in batches of 32,
         one by one from the subjects that give them so in one process (vfm, litdata, pread).
decode   the same in one process with every video decoded by PyAV to RGB, beside the decoder alone:
         its time in the same run, sample by sample
restore  packs of a curated folder: time to the first batch, fresh and restored at far positions,
         and what a save takes and weighs
memory   resident memory of the process after each of four epochs of packs, nothing cached
ranks    samples lost and doubled when a run on 2 ranks of 2 workers goes on with fewer ranks

Each subject runs in a process of its own that ends before the next begins; subjects take turns over
the rounds, and medians are shown. CPU is user and system time of the process and its workers.
litdata and mosaicml-streaming are in no extra but `bench`; what cannot be imported says so. Where
torchvision is absent, the two names of it that mosaicml-streaming imports are stood in for.

examples:
  vfm bench loader
  vfm bench loader cases=[read] num_samples=4000 rounds=5
"""


CASES = ("read", "decode", "restore", "memory", "ranks")


@dataclass(kw_only=True)
class Settings:
    cases: list[str] = field(default_factory=lambda: list(CASES))
    num_samples: int = 2000
    num_decoded: int = 200
    workers: int = 2
    rounds: int = 3
    timeout_s: float = 100.0
    """A subject that takes longer is said to hang."""


def measure(settings: Settings) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-loader-") as name:
        root = Path(name)
        chosen = settings.cases
        prepared: dict[str, Path] = {}
        absent: dict[str, str] = {}
        if {"read", "decode", "ranks"} & set(chosen):
            make_shards(root / "shards", settings.num_samples)
            every = {"read", "decode"} & set(chosen)
            for subject, made in peers.SUBJECTS.items():
                if not every and subject != "megatron-energon":
                    continue
                scratch = root / subject.replace(" ", "-")
                scratch.mkdir()
                prepared[subject], fault = apart(
                    settings.timeout_s, made.prepare, root / "shards", scratch
                )
                if fault:
                    absent[subject] = fault
        cases = []
        if "read" in chosen:
            cases += [
                ("read, 1 process", 0, 0),
                (f"read, {settings.workers} workers", settings.workers, 0),
            ]
        if "decode" in chosen:
            cases += [("decode, 1 process", 0, settings.num_decoded)]
        for case, workers, decoded in cases:
            yield from _reading(settings, case, workers, decoded, prepared, absent)
        if "restore" in chosen:
            yield from _restoring(settings, root)
        if "memory" in chosen:
            yield from _memory(settings, root)
        if "ranks" in chosen:
            yield from _changing_ranks(settings, root, prepared, absent)


def _reading(
    settings: Settings,
    case: str,
    workers: int,
    decoded: int,
    prepared: dict[str, Path],
    absent: dict[str, str],
) -> Iterator[Row]:
    results: dict[str, list[dict[str, float]]] = {}
    absent = dict(absent)
    for _ in range(settings.rounds):
        for subject, made in peers.SUBJECTS.items():
            if subject in absent or (workers and not made.workers):
                continue
            result, fault = apart(
                settings.timeout_s, consume, subject, prepared[subject], workers, decoded
            )
            if fault:
                absent[subject] = fault
            else:
                results.setdefault(subject, []).append(result)
    for subject in peers.SUBJECTS:
        if subject in absent:
            yield _row(case, subject, "samples", None, absent[subject])
        for metric, unit in _METRICS.items():
            values = [result[metric] for result in results.get(subject, []) if metric in result]
            if values and subject not in absent:
                yield _row(case, subject, metric, statistics.median(values), unit)
                if metric in ("cpu", "rate"):
                    yield _row(case, subject, f"{metric} least", min(values), unit)
                    yield _row(case, subject, f"{metric} most", max(values), unit)


_METRICS = {"samples": "1", "rate": "samples/s", "cpu": "ms/sample", "against decoder": "1"}


def consume(subject: str, folder: Path, workers: int, decoded: int) -> dict[str, float]:
    """Runs in a process of its own: one warm pass, then the timed one."""
    read = peers.SUBJECTS[subject].read
    for _, video, _ in read(folder, workers):
        warm = bytes(video)
    if decoded:
        return _decoding(read(folder, workers), decoded, warm)
    count = 0
    cpu, wall = cpu_s_used(), time.perf_counter()
    for parts in read(folder, workers):
        owned = [bytes(part) for part in parts]
        json.loads(owned[0])
        count += 1
    # Workers are counted once they have ended, which the loop's end waits for.
    cpu_s, wall_s = cpu_s_used() - cpu, time.perf_counter() - wall
    return {"samples": count, "rate": count / wall_s, "cpu": 1000 * cpu_s / count}


def _decoding(samples: Iterable[peers.Parts], count: int, warm: bytes) -> dict[str, float]:
    """Reading and decoding take turns, so that whatever else runs here slows both alike."""
    _decode(warm)
    read_s = decode_s = 0.0
    begin = last = time.process_time()
    wall = time.perf_counter()
    for parts in itertools.islice(samples, count):
        owned = [bytes(part) for part in parts]
        json.loads(owned[0])
        read = time.process_time()
        _decode(owned[1])
        decoded = time.process_time()
        read_s, decode_s, last = read_s + read - last, decode_s + decoded - read, decoded
    return {
        "samples": count,
        "rate": count / (time.perf_counter() - wall),
        "cpu": 1000 * (last - begin) / count,
        "against decoder": (read_s + decode_s) / decode_s,
    }


def _decode(video: bytes) -> None:
    import io

    import av

    with av.open(io.BytesIO(video), "r") as container:
        container.streams.video[0].codec_context.thread_count = 1
        for frame in container.decode(video=0):
            frame.to_ndarray(format="rgb24")


def _restoring(settings: Settings, root: Path) -> Iterator[Row]:
    make_curated(root / "curated")
    results = [apart(settings.timeout_s, restore, root / "curated") for _ in range(settings.rounds)]
    for metric, unit in (("first", "s"), ("save", "ms"), ("state", "KiB")):
        for place in PLACES:
            values = [r[f"{place}"][metric] for r, fault in results if not fault]
            if fault := next((fault for _, fault in results if fault), ""):
                yield _row("restore", f"vfm, pack {place}", metric, None, fault)
            elif metric in results[0][0][f"{place}"]:
                yield _row("restore", f"vfm, pack {place}", metric, statistics.median(values), unit)


PLACES = (0, 100, 1000)


def restore(folder: Path) -> dict[str, dict[str, float]]:
    """Runs in a process of its own."""
    from dataloading.config import Compression, LoaderConfig
    from dataloading.loader import PackedLoader
    from dataloading.state import LoaderState

    config = LoaderConfig(
        path=str(folder), token_budget=4096, num_frames=[1, 5, 9], size=[64, 64], cache_bytes=0
    )
    planner = PackedLoader(config, Compression())._planner()
    with PackedLoader(config, Compression()) as warm:
        next(warm)
    found = {}
    for place in PLACES:
        while planner.state().next_pack < place:
            planner.next_pack()
        source = PackedLoader(config, Compression())
        state: LoaderState = planner.state()
        raw = json.loads(json.dumps(state.to_dict(source._catalogue.identity())))
        begin = time.perf_counter()
        source.load_state_dict(raw)
        batch = next(source)
        first = time.perf_counter() - begin
        assert batch.pack_index == place
        begin = time.perf_counter()
        saved = json.dumps(source.state_dict())
        save = time.perf_counter() - begin
        found[f"{place}"] = {"first": first, "save": 1000 * save, "state": len(saved) / 1024}
        source.close()
    return found


def _memory(settings: Settings, root: Path) -> Iterator[Row]:
    make_curated(root / "epochs", num_clips=200)
    resident, fault = apart(settings.timeout_s, epochs, root / "epochs")
    for number in range(4):
        value = None if fault else resident[number]
        yield _row("memory", "vfm", f"after epoch {number + 1}", value, fault or "MiB")


def epochs(folder: Path) -> list[float]:
    """Runs in a process of its own: MiB after each epoch of the packs delivered."""
    from dataloading.config import Compression, LoaderConfig
    from dataloading.loader import PackedLoader

    config = LoaderConfig(
        path=str(folder), token_budget=512, num_frames=[1, 5, 9], size=[64, 64], cache_bytes=0
    )
    resident = []
    with PackedLoader(config, Compression()) as loader:
        size = loader.describe()["samples_per_epoch"]
        for _ in range(4):
            count = 0
            while count < size:
                count += next(loader).num_samples
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * 4096 / 2**20)
    return resident


def _changing_ranks(
    settings: Settings, root: Path, prepared: dict[str, Path], absent: dict[str, str]
) -> Iterator[Row]:
    case = "2 ranks of 2 workers to 1 of 2"
    subjects: list[tuple[str, Callable[..., dict[str, int]], Path]] = [
        ("vfm", change_ranks_vfm, root / "planned")
    ]
    make_curated(root / "planned", num_clips=settings.num_samples, decodable=False)
    if "megatron-energon" in absent:
        yield _row(case, "megatron-energon", "lost", None, absent["megatron-energon"])
    else:
        subjects.append(("megatron-energon", change_ranks_energon, prepared["megatron-energon"]))
    for subject, change, folder in subjects:
        counts, fault = apart(settings.timeout_s, change, folder)
        for metric in ("of", "lost", "doubled"):
            yield _row(case, subject, metric, None if fault else counts[metric], fault or "samples")


def change_ranks_energon(folder: Path) -> dict[str, int]:
    """Each of two ranks saves after 100 packs; one rank goes on from the first one's state."""
    import megatron.energon as energon

    seen: list[str] = []
    states = []
    for rank in range(2):
        dataset = peers.energon_dataset(folder, rank, 2, 2, peers.energon_encoder(64))
        loader = energon.get_savable_loader(dataset)
        for batch in itertools.islice(loader, 100):
            seen += [key for pack in batch for key in pack]
        states.append(loader.save_state_rank())
    dataset = peers.energon_dataset(folder, 0, 1, 2, peers.energon_encoder(64))
    loader = energon.get_savable_loader(dataset)
    loader.restore_state_rank(states[0])
    for batch in loader:
        seen += [key for pack in batch for key in pack]
    return _tally(seen, len(set(_keys(folder))))


def change_ranks_vfm(folder: Path) -> dict[str, int]:
    """The same: two ranks of two workers deliver 50 packs each, one rank of two ends the epoch."""
    from dataloading.config import Compression, LoaderConfig
    from dataloading.loader import PackedLoader
    from dataloading.plan import Pack
    from dataloading.prefetch import Prefetcher
    from dataloading.threads import StorageWatch

    config = LoaderConfig(
        path=str(folder), token_budget=1024, num_frames=[1, 5, 9], size=[64, 64], seed=3
    )
    source = PackedLoader(config, Compression())

    def deliver(state: Any, ranks: int, workers: int, rounds: int) -> tuple[list[Pack], Any]:
        packs: list[Pack] = []
        after = state
        for rank in range(ranks):
            for worker in range(workers):
                planner = source._planner()
                planner.restore(state)
                ahead = Prefetcher(
                    planner,
                    lambda sample: None,  # the plan alone is looked at
                    watch=StorageWatch(60),
                    dp_rank=rank,
                    dp_size=ranks,
                    first_round=worker,
                    every_round=workers,
                    num_packs=2,
                    num_threads=1,
                )
                for _ in range(rounds // workers):
                    pending = next(ahead)
                    packs.append(pending.pack)
                    after = pending.state
                ahead.close()
        return packs, after

    size = len(source._table)
    packs, state = deliver(source._planner().state(), 2, 2, 50)
    # The first epoch is over once none of its samples waits.
    while state.sources[0][0] == 0 or any(
        e == 0 for _, e, _ in (*state.pool, *itertools.chain(*state.ready))
    ):
        more, state = deliver(state, 1, 2, 50)
        packs += more
    seen = [s.ordinal for pack in packs for s in pack.samples if s.epoch == 0]
    return _tally([str(ordinal) for ordinal in seen], size)


def _tally(seen: list[str], of: int) -> dict[str, int]:
    return {"of": of, "lost": of - len(set(seen)), "doubled": len(seen) - len(set(seen))}


def _keys(folder: Path) -> list[str]:
    from dataloading.folder import list_tar, samples_of

    return [
        sample.key
        for path in sorted(folder.glob("*.tar"))
        for sample in samples_of(path.name, list_tar(path)[0])
    ]


def _row(case: str, subject: str, metric: str, value: float | None, unit: str) -> Row:
    return Row(
        benchmark="loader", case=case, subject=subject, metric=metric, value=value, unit=unit
    )
