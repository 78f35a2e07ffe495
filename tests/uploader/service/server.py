"""The fake service on the loopback: `with Server(Service()) as url` gives what BIGQUERY_EMULATOR_HOST is set to.

`url` + `/as/ALICE` is the same service for the account ALICE. `requests` lists the requests received; a proxy
(`tests.uploader.faulty`) may stand in front. `python -m tests.uploader.service.server` prints the URL of one without
options and serves it until its standard input ends.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.uploader.service.rest import Request, Rest
from tests.uploader.service.service import Service

OWNER = "owner"
PREFIX = re.compile(r"(?P<account>/as/[^/]+)?(?P<upload>/upload)?/bigquery/v2(?P<path>/.*)")


class Server:
    """Serves one `Service` over HTTP within a block."""

    def __init__(self, service: Service | None = None) -> None:
        """Use the service, by default one without options."""
        self.service = service or Service()
        self.requests: list[Request] = []
        self._rest = Rest(self.service)

    def __enter__(self) -> str:
        serving = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def do_GET(self) -> None:
                serving.handle(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names required by the base class

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *what: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.service.close()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Handle one request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        split = urlsplit(handler.path)
        found = PREFIX.fullmatch(split.path)
        prefix = (found["account"] or "") if found is not None else ""
        request = Request(
            prefix.removeprefix("/as/") or OWNER,
            handler.command,
            (found["upload"] or "") + found["path"] if found is not None else split.path,
            dict(parse_qsl(split.query)),
            {name.lower(): value for name, value in handler.headers.items()},
            body,
            f"http://{handler.headers['Host']}{prefix}",
        )
        if request.path != "/":
            self.requests.append(request)
        response = self._rest.answer(request)
        content = b"" if response.body is None else json.dumps(response.body, allow_nan=False).encode()
        handler.send_response(response.status)
        for name, value in {"Content-Type": "application/json; charset=UTF-8", **response.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def main() -> None:
    """Serve until standard input ends."""
    with Server() as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
