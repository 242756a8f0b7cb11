"""A proxy in front of an S3 server that answers some requests as a store in trouble does."""

import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("error", "slow_down", "silence", "late_error", "truncated", "slow")
"""500; 503; no answer; 500 or no answer although the request was carried out; a body that ends
before its time; a body that comes in drops."""
_HOP = ("connection", "transfer-encoding", "keep-alive")


class FaultyProxy:
    """Passes requests on to `address`. While `share` is above 0, that part of them meets a fault.

    Faults are drawn from a seed in the order in which requests come.

    Args:
        key: the only access key that is let through; others are answered as S3 answers them.
        silence_s: how long a request hangs that is not answered.
    """

    def __init__(
        self,
        address: str,
        *,
        share: float,
        seed: int = 0,
        faults: Sequence[str] = FAULTS,
        key: str = "test",
        silence_s: float = 1.5,
    ) -> None:
        self.share = share
        self.met: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        """(method, path) of all requests."""
        self._address = address.removeprefix("http://")
        self._random = random.Random(seed)
        self._faults = faults
        self._turn = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                fault = outer._fault(self.command, self.path)
                if f"Credential={key}/" not in self.headers.get("Authorization", ""):
                    self._refuse()
                elif fault == "error":
                    self._say(500, "InternalError")
                elif fault == "slow_down":
                    self._say(503, "SlowDown")
                elif fault == "silence":
                    self._hang()
                else:
                    self._answer(*outer._forward(self, body), fault)

            def _answer(
                self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str
            ) -> None:
                if fault == "late_error":
                    if outer._even():
                        self._say(500, "InternalError")
                    else:
                        self._hang()
                    return
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if fault == "truncated":
                    self.wfile.write(body[: len(body) // 2])
                    self._hang_up()
                elif fault == "slow":
                    for at in range(0, len(body), max(1, len(body) // 4)):
                        self.wfile.write(body[at : at + max(1, len(body) // 4)])
                        time.sleep(0.05)
                else:
                    self.wfile.write(body)

            def _say(self, status: int, code: str) -> None:
                body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _refuse(self) -> None:
                self._say(403, "InvalidAccessKeyId")

            def _hang(self) -> None:
                time.sleep(silence_s)
                self._hang_up()

            def _hang_up(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", Handler._pass)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fault(self, method: str, path: str) -> str:
        with self._turn:
            self.asked.append((method, path))
            if self._random.random() >= self.share:
                return ""
            fault = self._random.choice(self._faults)
            self.met[fault] += 1
            return fault

    def _even(self) -> bool:
        with self._turn:
            return self._random.random() < 0.5

    def _forward(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        connection.request(request.command, request.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        found = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), found
