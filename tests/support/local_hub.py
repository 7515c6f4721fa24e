"""A hub on loopback: the few calls of huggingface_hub that create a repository, commit files and read them back."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class LocalHub:
    """`repos`: name -> path -> content of its files; `calls`: what was asked, as "METHOD path".

    `created`: name -> what was asked when it was created; `closed`: names that it refuses to give.
    """

    endpoint: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    created: dict[str, dict[str, object]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def commit_of(self, repo: str) -> str:
        digest = hashlib.sha1()
        for path, content in sorted(self.repos[repo].items()):
            digest.update(path.encode() + content)
        return digest.hexdigest()


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Serve an empty hub until the block ends."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            parts = self._parts()
            if parts == ["api", "repos", "create"]:
                given = json.loads(body)
                name = "/".join(part for part in (given.get("organization"), given["name"]) if part)
                known = name in hub.created
                hub.created.setdefault(name, given)
                hub.repos.setdefault(name, {})
                self._json({"url": f"{hub.endpoint}/{name}", "name": name}, 409 if known else 200)
            elif parts == ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            elif parts[:2] == ["api", "models"] and parts[4] == "preupload":
                files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
                self._json({"files": [{**file, "shouldIgnore": False} for file in files]})
            elif parts[:2] == ["api", "models"] and parts[4] == "commit":
                repo = "/".join(parts[2:4])
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        hub.repos[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                commit = hub.commit_of(repo)
                self._json(
                    {"success": True, "commitOid": commit, "commitUrl": f"{hub.endpoint}/{repo}/commit/{commit}"}
                )
            else:
                self._missing()

        def do_GET(self) -> None:
            parts = self._parts()
            repo = "/".join(parts[2:4] if parts[:1] == ["api"] else parts[:2])
            if repo not in hub.repos:
                self._missing("RepoNotFound")
            elif repo in hub.closed:
                self._send(403, b"{}", {})
            elif parts[0] == "api" and parts[4] == "revision" and parts[5] != "main":
                self._missing("RevisionNotFound")
            elif parts[0] == "api" and parts[4] == "revision":
                files = [{"rfilename": path} for path in hub.repos[repo]]
                self._json({"id": repo, "sha": hub.commit_of(repo), "siblings": files, "private": False, "tags": []})
            elif parts[0] == "api" and parts[4] == "tree":
                self._json([_entry(path, content) for path, content in hub.repos[repo].items()])
            elif parts[2] == "resolve" and "/".join(parts[4:]) in hub.repos[repo]:
                content = hub.repos[repo]["/".join(parts[4:])]
                headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": hub.commit_of(repo)}
                self._send(200, content, headers)
            else:
                self._missing("EntryNotFound")

        do_HEAD = do_GET

        def _parts(self) -> list[str]:
            path = unquote(urlsplit(self.path).path)
            hub.calls.append(f"{self.command} {path}")
            return path.strip("/").split("/")

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _json(self, content: object, status: int = 200) -> None:
            self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _missing(self, code: str = "") -> None:
            self._send(404, b"{}", {"X-Error-Code": code} if code else {})

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Tests print nothing."""

    return Handler


def _entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
