"""Somebody else's API, in a program of its own: what stands in its file happened.

``python -m tests.proof.machine.provider PORT FILE keys|lookup|neither`` serves it on loopback.
It takes its time before and after it acts, so that its callers die meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LATENCY = 0.06
"""Seconds that a request takes at most to arrive, and again for its answer to leave."""


class Book:
    """What happened: lines that are only ever added."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind
        self._lock = threading.Lock()
        self._entries = read(path)

    def act(self, key: str, order_id: str, until: float) -> int:
        """Bring one effect about; a repeated key counts where keys are honoured.

        Raises:
            TimeoutError: It is past ``until``: nobody waits for the request any more, and one that
                has not arrived by then never will. That much the ledger has to take for granted.

        """
        with self._lock:
            if time.monotonic() > until:
                raise TimeoutError(order_id)
            known = self.find(key) if self._kind == "keys" else None
            return known or self._enter(key, order_id)

    def find(self, key: str) -> int | None:
        """Look an effect up."""
        numbers = [entry["number"] for entry in self._entries if entry["key"] == key]
        return int(numbers[0]) if numbers else None

    def _enter(self, key: str, order_id: str) -> int:
        entry = {"number": len(self._entries) + 1, "key": key, "order_id": order_id}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._entries.append(entry)
        return len(self._entries)


def read(path: Path) -> list[dict[str, Any]]:
    """Read everything that happened."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class _Desk(BaseHTTPRequestHandler):
    book: Book

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _dawdle()
        try:
            number = self.book.act(asked["key"], asked["order_id"], asked["until"])
        except TimeoutError:
            self.close_connection = True
            return
        _dawdle()
        self._answer({"order_id": asked["order_id"], "number": number})

    def do_GET(self) -> None:
        (key,) = parse_qs(urlsplit(self.path).query).get("key", [""])
        self._answer({"number": self.book.find(key)})

    def _answer(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # nobody is there any more to hear it
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass


def _dawdle() -> None:
    time.sleep(random.uniform(0, LATENCY))  # noqa: S311 - no secret


def serve(port: int, path: Path, kind: str) -> None:
    """Serve until killed."""
    desk = type("Desk", (_Desk,), {"book": Book(path, kind)})
    ThreadingHTTPServer(("127.0.0.1", port), desk).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
