"""Servers for tests: an S3 of moto's, and a web server that can be told to fail."""

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@contextlib.contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server in this process; the environment leads to it."""
    server = pytest.importorskip("moto.server", reason="moto and flask-cors are not installed")
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        address = f"http://{host}:{port}"
        # What it holds outlives a server of the same process.
        reset = urllib.request.Request(f"{address}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=60).close()
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield address
    finally:
        running.stop()


def new_bucket(address: str, name: str) -> None:
    make = urllib.request.Request(f"{address}/{name}", method="PUT")
    urllib.request.urlopen(make, timeout=60).close()


class WebServer:
    """Serves one file by ranges, and answers 503 to as many requests as it is told."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.failing = 0
        self.status = 503
        self.ranges: list[tuple[int, int]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                if outer.failing:
                    outer.failing -= 1
                    self.send_response(outer.status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                first, last = 0, len(outer.data) - 1
                asked = self.headers.get("Range")
                if asked:
                    words = asked.removeprefix("bytes=").split("-")
                    first, last = int(words[0]), min(int(words[1] or last), last)
                    outer.ranges.append((first, last + 1))
                part = outer.data[first : last + 1]
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(part)))
                self.send_header("ETag", f'"{hash(outer.data)}"')
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
                if asked:
                    total = len(outer.data)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
                self.end_headers()
                if body:
                    self.wfile.write(part)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/folder/a.mp4"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "WebServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
