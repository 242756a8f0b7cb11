"""A curated folder between runs: one driver at a time, its settings, and what a kill left."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from common.errors import ConfigError, DataError
from common.storage import TEMPORARY_PREFIX, recover_folder
from common.store_path import Place, StorePath, place_of
from curation.config import CurateConfig
from curation.decide import RULES, typed_limits
from curation.lease import held
from curation.ledger import Ledger, only_driver
from curation.stages.analyse import Analyse
from curation.stages.transcode import Transcode
from curation.store_ledger import StoreLedger, stored_meta
from dataloading.schema import Manifest


@contextlib.contextmanager
def opened(folder: Place) -> Iterator[Ledger]:
    """The ledger of a folder that nobody else drives meanwhile."""
    if isinstance(folder, StorePath):
        with held(folder) as lease:
            yield StoreLedger(folder / "ledger", lease)
        return
    with only_driver(folder / "ledger"):
        ledger = Ledger(folder / "ledger")
        try:
            yield ledger
        finally:
            ledger.close()


def sweep(folder: Place) -> None:
    """Removes what a killed run left half-written; nobody else writes here now. In a store nothing
    is ever half-written."""
    if isinstance(folder, StorePath):
        return
    recover_folder(folder / "shards")
    for part in (folder / "shards", folder / "ledger" / "spool", folder / "report"):
        for path in part.rglob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def settings_of(folder: str) -> CurateConfig:
    """What a folder was last curated or decided with.

    Raises `ConfigError` where it is no curated folder.
    """
    path = place_of(folder)
    if not path.is_dir():
        raise ConfigError(f"there is no folder {folder}: give the output of a `vfm curate`")
    whole = (path / "clips.parquet").is_file() and (path / "summary.json").is_file()
    if not whole or (stored := _stored_settings(path)) is None:
        raise ConfigError(
            f"{folder} is not the output of a finished `vfm curate`: finish that one first"
        )
    try:
        assert isinstance(stored, dict)
        for rule in RULES:  # a limit that the folder's vfm did not know limited nothing
            section, side = rule.setting.split(".")
            stored.setdefault(section, {}).setdefault(side, None)
        return dataclasses.replace(_built(CurateConfig, stored), output=str(path))
    except (AssertionError, AttributeError, TypeError, KeyError, ConfigError) as error:
        raise DataError(
            f"{folder} was curated by another version of vfm, so that its settings are not known "
            "here: give its `vfm curate` once more"
        ) from error


def _stored_settings(folder: Place) -> Any | None:
    if isinstance(folder, StorePath):
        return stored_meta(folder / "ledger").get("config")
    if not (folder / "ledger" / "ledger.sqlite").is_file():
        return None
    ledger = Ledger(folder / "ledger")
    try:
        return ledger.meta("config")
    finally:
        ledger.close()


def remember_settings(
    ledger: Ledger, config: CurateConfig, now: Any, limits: Mapping[str, float | None]
) -> None:
    """Keeps what a folder is decided by.

    Args:
        now: the parameters that shards of one folder share.
        limits: what its percentiles are resolved to.
    """
    with ledger.together():
        ledger.set_meta("limits", limits)
        ledger.set_meta("config", asdict(config))
        ledger.set_meta("parameters", now)


def parameters(config: CurateConfig, analyse: Analyse, transcode: Transcode) -> Any:
    """What the shards of one folder have in common, as plain values."""
    found = {
        "analyse": {**analyse.params(), "version": analyse.version},
        "decide": {
            **typed_limits(config),
            "min_clip_s": config.min_clip_s,
            "target_yield": config.target_yield,
            "labels": config.labels,
        },
        "transcode": {**transcode.params(), "version": transcode.version},
        "shard": asdict(config.shard),
    }
    return json.loads(json.dumps(found))


def check_parameters(folder: Place, ledger: Ledger, manifest: Manifest, now: Any) -> None:
    """Shards of one folder share their parameters; another set needs another folder."""
    before = ledger.meta("parameters")
    if not manifest.shards or before == now:
        return
    if before is None:
        raise ConfigError(
            f"{folder} holds shards, but not the ledger that says how they were made: "
            "choose another output folder"
        )
    changed = list(_differences(before, now))
    if not changed:  # settings that are new since, and null
        return
    told = "; ".join(f"{key} was {was}, is {is_}" for key, was, is_ in changed[:4])
    if all(key.startswith("decide.") for key, _, _ in changed):
        words = " ".join(f"{key.removeprefix('decide.')}={_word(v)}" for key, _, v in changed)
        raise ConfigError(
            f"{folder} was decided with other limits ({told}): `vfm refilter {folder} {words}` "
            "decides again, or choose another output folder"
        )
    raise ConfigError(
        f"{folder} holds shards made with other parameters ({told}): choose another output folder"
    )


def check_nothing_to_drop(folder: Place, num_dropped: int) -> None:
    """Shards that hold more than what is kept are not added to."""
    if num_dropped:
        raise ConfigError(
            f"the shards of {folder} hold clips that are no longer kept ({num_dropped}), and "
            f"shards are never rewritten unasked: `vfm shard {folder} rewrite=true` makes them "
            "anew, copying the encodings that there are"
        )


def _word(value: Any) -> str:
    return "null" if value is None else str(value)


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            path = f"{key}.{name}".lstrip(".")
            yield from _differences(before.get(name), now.get(name), path)
    elif before != now:
        yield key, before, now


def _built(kind: type, plain: dict[str, Any]) -> Any:
    """A dataclass of settings from `asdict`'s form."""
    values = dict(plain)
    for field in dataclasses.fields(kind):
        section = field.default_factory
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            values[field.name] = _built(section, plain[field.name])
    return kind(**values)
