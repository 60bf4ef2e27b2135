"""A hub on the loopback: the endpoints that huggingface_hub calls, repositories in memory.

    with HubServer() as hub:  # hub.environment() points a process at it
        ...

Each commit is whole or not there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import warm

Files = dict[str, bytes]


class HubServer:
    """`repositories`: id -> commits, oldest first, each a (sha, files)."""

    def __init__(self) -> None:
        self.clear()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def clear(self) -> None:
        """Be a new hub at the same address."""
        self.repositories: dict[str, list[tuple[str, Files]]] = {}

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a fresh process whose hub is this one, with its cache in `home`."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        return own | {
            "HF_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}",
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_loopback",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }

    def files(self, repo: str) -> Files:
        """The newest commit's."""
        return self.repositories[repo][-1][1]

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> str:
        files = dict(self.files(repo)) if self.repositories[repo] else {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                files.pop(value["path"], None)
        sha = hashlib.sha1(f"{repo}{len(self.repositories[repo])}".encode()).hexdigest()
        self.repositories[repo].append((sha, files))
        return sha

    def add(self, repo: str, folder: Path) -> None:
        """A repository of one commit with a folder's files."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.repositories[repo] = [(hashlib.sha1(repo.encode()).hexdigest(), files)]

    def revision(self, repo: str, name: str) -> tuple[str, Files] | None:
        commits = self.repositories.get(repo) or []
        if name == "main" and commits:
            return commits[-1]
        return next((commit for commit in commits if commit[0] == name), None)


def pushed(script: str, flags: Sequence[str], repository: str, home: Path) -> Files:
    """What a run of the script with these flags leaves in the repository of a hub of its own.

    None of it has the path of the folder that ``home`` is in, where the run has its files.
    """
    with HubServer() as hub:
        done = subprocess.run(
            [warm.python("finetune"), f"finetune/{script}.py", *flags],
            cwd=Path(__file__).parents[1],
            env=hub.environment(home) | {"ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = hub.files(repository)
    here = str(home.parent).encode()
    assert [name for name, data in files.items() if here in data] == []
    return files


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: HubServer

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        request = f"{self.command} {path}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for pattern, method in _ROUTES:
            found = re.fullmatch(pattern, request)
            if found:
                method(self, body, *found.groups())
                return
        self._fail(404, "EntryNotFound")

    do_HEAD = do_POST = do_GET

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        repo = "/".join(filter(None, (asked.get("organization") or "user", asked["name"])))
        taken = repo in self.server_hub.repositories
        self.server_hub.repositories.setdefault(repo, [])
        url = f"http://{self.headers['Host']}/{repo}"
        self._json({"url": url, "name": repo, "id": repo}, 409 if taken else 200)

    def _validate(self, body: bytes) -> None:
        self._json({"errors": [], "warnings": []})

    def _preupload(self, body: bytes, repo: str, revision: str) -> None:
        paths = [entry["path"] for entry in json.loads(body)["files"]]
        modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
        self._json({"files": modes})

    def _commit(self, body: bytes, repo: str, revision: str) -> None:
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        sha = self.server_hub.commit(repo, lines)
        url = f"http://{self.headers['Host']}/{repo}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url})

    def _info(self, body: bytes, repo: str, revision: str | None = None) -> None:
        found = self.server_hub.revision(repo, revision or "main")
        if repo not in self.server_hub.repositories:
            self._fail(404, "RepoNotFound")
        elif found is None:
            self._json({"id": repo, "siblings": [], "tags": [], "private": False})
        else:
            names = [{"rfilename": name} for name in sorted(found[1])]
            self._json({"id": repo, "sha": found[0], "siblings": names, "private": False})

    def _paths(self, body: bytes, repo: str, revision: str) -> None:
        """Of each path asked for what there is: a file, or a folder that files lie in."""
        found = self.server_hub.revision(repo, revision)
        files: Files = found[1] if found else {}
        asked = parse_qs(body.decode()).get("paths", [])
        folders = [path for path in asked if any(name.startswith(f"{path}/") for name in files)]
        self._json(
            [_entry(path, files[path]) for path in asked if path in files]
            + [_folder(path) for path in folders]
        )

    def _tree(self, body: bytes, repo: str, revision: str, folder: str | None = None) -> None:
        """The files; of ``recursive=false`` those of one folder, and the folders in it."""
        found = self.server_hub.revision(repo, revision)
        if found is None:
            self._fail(404, "RevisionNotFound")
            return
        start = f"{folder}/" if folder else ""
        files = {name: data for name, data in found[1].items() if name.startswith(start)}
        folders = set[str]()
        if parse_qs(urlsplit(self.path).query).get("recursive") == ["false"]:
            deeper = {name for name in files if "/" in name.removeprefix(start)}
            folders = {start + name.removeprefix(start).partition("/")[0] for name in deeper}
            files = {name: data for name, data in files.items() if name not in deeper}
        self._json(
            [_folder(name) for name in sorted(folders)]
            + [_entry(name, data) for name, data in sorted(files.items())]
        )

    def _resolve(self, body: bytes, repo: str, revision: str, name: str) -> None:
        found = self.server_hub.revision(repo, revision)
        if repo not in self.server_hub.repositories:
            self._fail(404, "RepoNotFound")
        elif found is None or name not in found[1]:
            self._fail(404, "EntryNotFound")
        else:
            self._send(found[1][name], found[0])

    def _send(self, data: bytes, sha: str) -> None:
        """The file, or the part of it that is asked for."""
        start, end = 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": sha}
        if asked:
            start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._answer(206 if asked else 200, data[start:end], headers)

    def _json(self, value: object, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}


def _folder(name: str) -> dict[str, Any]:
    return {"type": "directory", "path": name, "oid": _etag(name.encode())}


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


_REPO = r"([^/]+/[^/]+)"
_KIND = "(?:models|datasets)"  # of repositories; their names are kept together
_ROUTES: tuple[tuple[str, Callable[..., None]], ...] = (
    ("POST /api/repos/create", _Handler._create),
    ("POST /api/validate-yaml", _Handler._validate),
    (f"POST /api/models/{_REPO}/preupload/(.+)", _Handler._preupload),
    (f"POST /api/models/{_REPO}/commit/(.+)", _Handler._commit),
    (f"POST /api/datasets/{_REPO}/paths-info/([^/]+)", _Handler._paths),
    (f"GET /api/{_KIND}/{_REPO}/tree/([^/]+)/?(.*)", _Handler._tree),
    (f"GET /api/{_KIND}/{_REPO}/revision/(.+)", _Handler._info),
    (f"GET /api/{_KIND}/{_REPO}", _Handler._info),
    (f"(?:GET|HEAD) /(?:datasets/)?{_REPO}/resolve/([^/]+)/(.+)", _Handler._resolve),
)
