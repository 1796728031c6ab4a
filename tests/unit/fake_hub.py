"""A Hugging Face hub on 127.0.0.1 that serves folders: enough of its HTTP for huggingface_hub's real download code."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`repos` {id: folder}, ids in `gated` need the token "good". `cut`: bytes after which one download breaks off."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.repos: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []  # files whose content was asked for
        self.ranges: list[str] = []
        self.cut: int | None = None

    def env(self, home: Path) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serve():
    """Context manager: a running Hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], hub)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), "/".join(parts[4:]), hub)
        else:
            self._send(404, b"")

    do_HEAD = do_GET

    def _api(self, repo: str, rest: list[str], hub: Hub) -> None:
        if repo not in hub.repos:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return
        files = sorted(p for p in hub.repos[repo].rglob("*") if p.is_file())
        names = [str(p.relative_to(hub.repos[repo])) for p in files]
        answer: Any
        if rest[:1] == ["tree"]:
            answer = [
                {"type": "file", "path": name, "size": p.stat().st_size, "oid": _etag(p)}
                for name, p in zip(names, files, strict=True)
            ]
        else:
            answer = {"id": repo, "modelId": repo, "sha": COMMIT, "private": False, "tags": [], "downloads": 0}
            answer |= {"gated": "manual" if repo in hub.gated else False, "siblings": [{"rfilename": n} for n in names]}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, name: str, hub: Hub) -> None:
        path = hub.repos.get(repo, Path("/nowhere")) / name
        if repo in hub.gated and self.headers.get("Authorization") != "Bearer good":
            self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo} is restricted"})
            return
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content, headers = path.read_bytes(), {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT}
        if self.command == "GET":
            hub.asked.append(name)
        status, asked = 200, self.headers.get("Range")
        if asked and self.command == "GET":
            hub.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        if hub.cut is not None and self.command == "GET" and len(content) > hub.cut:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content[: hub.cut])
            self.close_connection = True
            return
        self._send(status, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


def _etag(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
