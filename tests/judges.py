"""Servers in the place of a judge, each a real one on a port of its own: honest, foolish, hostile and broken ones."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One question, as the server read it."""

    nonce: str
    answer: str
    reference: str | None
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def good(self) -> bool:
        return self.reference is not None and self.answer.strip() == self.reference.strip()

    def line(self, good: bool) -> str:
        return f"VERDICT-{self.nonce}: {'PASS' if good else 'FAIL'}"


@dataclass
class Server:
    url: str
    asked: list[Asked] = field(default_factory=list)
    most: int = 0
    """Calls at the same time."""


def read_question(body: dict[str, Any], headers: dict[str, str]) -> Asked:
    """Reads it as a careful judge would: by the tags, every line behind its bar."""
    text = body["messages"][-1]["content"]
    nonce = re.findall(r"^VERDICT-([0-9a-f]{16}): FAIL$", text, re.MULTILINE)[-1]

    def quoted(name: str) -> str | None:
        found = re.findall(rf"^<{name}-{nonce}>\n(.*?)\n</{name}-{nonce}>$", text, re.MULTILINE | re.DOTALL)
        assert len(found) <= 1
        if not found:
            return None
        assert all(line.startswith("| ") for line in found[0].split("\n"))
        return "\n".join(line[2:] for line in found[0].split("\n"))

    answer = quoted("answer")
    assert answer is not None
    return Asked(nonce, answer, quoted("reference"), body, headers)


@contextlib.contextmanager
def judge_server(
    reply: Callable[[Asked], str | None], *,
    before: Callable[[Asked], tuple[int, dict[str, str]] | None] = lambda asked: None,
    finish: str = "stop", pause: float = 0.0, tls: ssl.SSLContext | None = None,
) -> Iterator[Server]:  # fmt: skip
    """`reply` writes what the model says. before: the status and headers of a call that is to fail."""
    lock, running = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with lock:
                running[0] += 1
                server.most = max(server.most, running[0])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = read_question(body, {k.lower(): v for k, v in self.headers.items()} | {"path": self.path})
            with lock:
                server.asked.append(asked)
                failing = before(asked)
            time.sleep(pause)
            status, headers = failing or (200, {})
            choice = {"index": 0, "message": {"role": "assistant", "content": reply(asked)}, "finish_reason": finish}
            data = json.dumps({"id": "x", "choices": [choice]}).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            with lock:
                running[0] -= 1
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            pass

    http = Quiet(("127.0.0.1", 0), Handler)
    if tls:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@contextlib.contextmanager
def raw_server(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Takes connections, reads what comes first and does what `answer` does with them. Gives the address."""
    stopped = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.settimeout(0.05)

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            connection.recv(1 << 16)
            answer(connection, stopped)

    def serve() -> None:
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        stopped.set()
        thread.join()
        listener.close()


def hang(connection: socket.socket, stopped: threading.Event) -> None:
    stopped.wait(60)


def drip(connection: socket.socket, stopped: threading.Event) -> None:
    """A header that never ends, a byte now and then: no pause is long, the whole is endless."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not stopped.wait(0.02):
        connection.sendall(b"a")


def flood(connection: socket.socket, stopped: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stopped.is_set():
        connection.sendall(b" " * (1 << 16))


def says(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    return lambda connection, stopped: connection.sendall(data)
