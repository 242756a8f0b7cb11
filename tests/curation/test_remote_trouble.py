"""What goes wrong between a run and a store: time-outs, wrong credentials, no bucket. Servers are
in this process. No network.
"""

import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from common import remote
from common.errors import MediaError, VfmError
from curation.config import CurateConfig
from curation.run import curate
from tests.common.stores import WebServer, s3


class SilentServer:
    """Takes connections and never answers; counts them."""

    def __init__(self) -> None:
        self.asked = 0
        self._held: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/a.mp4"
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.asked += 1
            self._held.append(connection)

    def __enter__(self) -> "SilentServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for connection in self._held:
            connection.close()


def test_time_outs_are_tried_again_and_end_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_CLIENT", {**remote._CLIENT, "timeout": "200ms"})
    quick = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=20)}
    backoff = {**remote._RETRIES["backoff"], **quick}
    monkeypatch.setattr(
        remote, "_RETRIES", {**remote._RETRIES, "max_retries": 2, "backoff": backoff}
    )
    monkeypatch.setattr(remote, "_TRIES", 1)
    with SilentServer() as server:
        with pytest.raises(MediaError, match="a.mp4") as told:
            remote.remote_state(server.url)
        assert told.value.reason == "unreadable"
        assert "\n" not in told.value.detail
        assert server.asked == 3, "once, and two times again"


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_one_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A server that refuses every request as S3 does those of a wrong signature."""
    with WebServer(b"x") as server:
        for name, value in {
            "AWS_ENDPOINT_URL": server.url.rsplit("/", 2)[0],
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "wrong",
            "AWS_SECRET_ACCESS_KEY": "wrong",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        server.failing, server.status = 1000, status
        with pytest.raises(VfmError, match="s3://footage/raw.*credentials") as told:
            curate(CurateConfig(input="s3://footage/raw", output=str(tmp_path / "out")))
        assert "\n" not in str(told.value)
        assert server.failing == 999, "a refusal is not asked again"
    assert not (tmp_path / "out").exists()


def test_a_missing_bucket_behind_a_list_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.txt").write_text("s3://absent/a.mp4\n")
    with s3(monkeypatch):
        result = curate(
            CurateConfig(input=str(tmp_path / "list.txt"), output=str(tmp_path / "out"))
        )
    assert result.exit_code == 3
    lines = (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    assert len(lines) == 1 and "s3://absent/a.mp4" in lines[0] and '"missing"' in lines[0]
