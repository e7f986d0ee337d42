"""One JSON question to a server and its answer, within a deadline that no slow, hanging or endless server can move.

    endpoint = read_url("http://127.0.0.1:8000/v1")             # ValueError: a sentence
    run_apart(post(endpoint, {"model": …}, key="", seconds=30))  # the reply's JSON, or Failed

Every call has a connection of its own, which is dropped when the deadline passes, whatever the server is doing. Redirects
are not followed, since the key would go with them, and proxies are not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import ssl
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MAX_REPLY_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 10
MAX_HEADERS = 200
AGAIN = frozenset({408, 409, 425, 429})
"""Statuses, beside 500 and above, after which the same question may be answered."""


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int
    secure: bool
    path: str

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


class Failed(Exception):
    """No reply that can be used. `cause` is short and fit to be counted: it holds nothing that the server said."""

    def __init__(self, cause: str, *, again: bool, wait: float | None = None) -> None:
        super().__init__(cause)
        self.cause, self.again, self.wait = cause, again, wait
        """again: whether it may go better next time; wait: seconds, where the server names them."""


def read_url(url: Any) -> Endpoint:
    """The chat endpoint behind a base address such as https://host/v1. Raises ValueError: a sentence's end."""
    if not isinstance(url, str) or re.search(r"[^\x21-\x7e]", url):
        raise ValueError("is no address; give the base address of a server, such as http://127.0.0.1:8000/v1")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no address; give the base address of a server, such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("holds more than an address; name the environment variable with the key in api_key_env")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/chat/completions") else f"{path}/chat/completions"
    secure = parts.scheme == "https"
    return Endpoint(parts.hostname, port or (443 if secure else 80), secure, path)


async def post(endpoint: Endpoint, question: Mapping[str, Any], *, key: str, seconds: float) -> Any:
    """The JSON of a reply with status 200. Raises Failed for everything else, at the latest after `seconds`."""
    body = json.dumps(question).encode("ascii")
    try:
        async with asyncio.timeout(seconds):
            data = await _exchange(endpoint, body, key)
    except Failed:
        raise
    except TimeoutError:
        raise Failed("timeout", again=True) from None
    except ssl.SSLCertVerificationError:
        raise Failed("endpoint_error: certificate", again=False) from None
    except (OSError, EOFError):
        raise Failed("endpoint_error: no connection", again=True) from None
    except (ValueError, asyncio.LimitOverrunError):
        raise Failed("endpoint_error: not HTTP", again=True) from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Failed("endpoint_error: not JSON", again=True) from None


@functools.lru_cache(maxsize=4)
def _tls(file: str | None, folder: str | None) -> ssl.SSLContext:
    """By the variables that name the authorities: reading them takes longer than a short call."""
    return ssl.create_default_context()


async def _exchange(endpoint: Endpoint, body: bytes, key: str) -> bytes:
    tls = _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if endpoint.secure else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=MAX_LINE_BYTES)
    try:
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        head = [f"POST {endpoint.path} HTTP/1.1", f"Host: {host}:{endpoint.port}", "Content-Type: application/json",
                f"Content-Length: {len(body)}", "Accept: application/json", "Accept-Encoding: identity",
                "Connection: close"]  # fmt: skip
        head += [f"Authorization: Bearer {key}"] if key else []
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        await writer.drain()
        status, headers = await _head(reader)
        while 100 <= status < 200:
            status, headers = await _head(reader)
        if status != 200:
            again = status in AGAIN or status >= 500
            raise Failed(f"endpoint_error: HTTP {status}", again=again, wait=_seconds(headers.get("retry-after")))
        return await _body(reader, headers)
    finally:
        writer.transport.abort()  # a polite end would wait for the server


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readuntil(b"\n")).decode("latin-1")
    found = re.match(r"HTTP/1\.[01] (\d{3})\b", first)
    if not found:
        raise ValueError("no status line")
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = (await reader.readuntil(b"\n")).decode("latin-1").strip()
        if not line:
            return int(found[1]), headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError("too many headers")


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _chunks(reader)
    length = headers.get("content-length")
    if length is not None:
        if not re.fullmatch(r"\d{1,9}", length, re.ASCII) or int(length) > MAX_REPLY_BYTES:
            raise ValueError("a reply without bounds")
        return await reader.readexactly(int(length))
    data = b""
    while piece := await reader.read(1 << 16):
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise ValueError("a reply without bounds")
    return data


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while True:
        size = (await reader.readuntil(b"\n")).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            raise ValueError("a broken chunk")
        if not int(size, 16):
            return data  # the connection ends here, and so may its trailers
        if len(data) + int(size, 16) > MAX_REPLY_BYTES:
            raise ValueError("a reply without bounds")
        data += await reader.readexactly(int(size, 16))
        await reader.readuntil(b"\n")


def _seconds(value: str | None) -> float | None:
    """Retry-After in seconds; the other form, a date, is left to the usual pause."""
    return float(value) if value is not None and re.fullmatch(r"\d{1,5}", value, re.ASCII) else None


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs it in a thread with an event loop of its own, since the caller may be in one; what interrupts him ends it.

    The loop is not waited for beyond its work: looking up a name cannot be interrupted, and may take half a minute.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)

    def run() -> Any:
        try:
            return loop.run_until_complete(task)
        finally:
            loop.close()

    with ThreadPoolExecutor(1, thread_name_prefix="milepost-judge") as threads:
        done = threads.submit(run)
        try:
            return done.result()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the work itself has failed
                loop.call_soon_threadsafe(task.cancel)
            raise
