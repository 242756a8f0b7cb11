"""Wiring tier: hub ids that cannot be read are told in one line, without the network's help."""

import huggingface_hub
import pytest

from common.errors import DataError
from models.hub_access import check_hub
from models.tokenizers.load import load_tokenizer


class Api:
    """A hub that answers with an error."""

    error: Exception | None = None

    def model_info(self, path: str, timeout: float) -> None:
        assert timeout == 10.0
        if self.error is not None:
            raise self.error


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(Api, "error", None)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda path, file: None)
    return Api


def test_an_unreachable_hub_is_told(hub, monkeypatch, capfd):
    monkeypatch.setattr(hub, "error", ConnectionError("Name or service\n not known"))
    said = (
        "no tokenizer can be read from tokenizer.path=someone/thing: there is no such folder, and "
        "the hub cannot be reached to look for the id: Name or service not known"
    )
    with pytest.raises(DataError) as error:
        load_tokenizer("someone/thing")
    assert str(error.value) == said
    assert capfd.readouterr().err == ""


def test_an_unknown_id_is_told(hub, monkeypatch):
    from huggingface_hub.errors import RepositoryNotFoundError

    unknown = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    monkeypatch.setattr(hub, "error", unknown)
    with pytest.raises(DataError, match="the hub knows no such id"):
        check_hub("text.path", "someone/thing", "text encoder", ["config.json"])
    monkeypatch.undo()
    with pytest.raises(DataError, match="it is no hub id"):
        check_hub("text.path", "no such/thing", "text encoder", ["config.json"])


def test_what_is_there_needs_no_hub(hub, monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "error", ConnectionError("nobody"))
    check_hub("text.path", str(tmp_path), "text encoder", ["config.json"])
    kept = {"config.json": str(tmp_path / "config.json")}
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda path, file: kept.get(file)
    )
    check_hub("text.path", "someone/thing", "text encoder", ["a.json", "config.json"])
