"""Serves the live dashboard with waitress; a plain process, one command, nothing else to run."""

from __future__ import annotations

from dashboards.app.application import Application
from uploader.errors import BadInput
from uploader.warehouse import Warehouse

THREADS = 4


def serve(warehouse: Warehouse, host: str, port: int) -> None:
    """Serve until interrupted. Raises `BadInput` without the extra, and where it cannot listen."""
    try:
        from waitress import create_server
    except ImportError as error:
        raise BadInput(
            "the live dashboard needs waitress: install the extra `dashboard`, as in pip install '.[dashboard]'"
        ) from error
    try:
        server = create_server(Application(warehouse), host=host, port=port, threads=THREADS, ident=None)
    except OSError as error:
        raise BadInput(
            f"--listen: {host}:{port}: {error.strerror or error}; name another HOST:PORT, port 0 is any that is free"
        ) from error
    print(f"dashboard of {warehouse.address}: http://{host}:{server.effective_port}/  (Ctrl-C ends it)", flush=True)
    try:
        server.run()
    finally:
        server.close()
