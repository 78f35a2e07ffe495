"""Serves the live dashboard with waitress, in one process."""

from __future__ import annotations

from typing import Any

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.guard import Guard
from keras_matrix.dashboards.live.app.hosts import ListenAddress
from keras_matrix.dashboards.live.app.source import PageSource
from keras_matrix.uploader.errors import BadInput


def serve(source: PageSource, place: ListenAddress) -> None:
    """Serve until interrupted. Raises `BadInput` if the extra is missing or the address cannot be used."""
    try:
        from keras_matrix.dashboards.live.app.channels import server_of
    except ImportError as error:
        raise BadInput(
            "the live dashboard needs waitress: install the extra `dashboard`, as in pip install '.[dashboard]'"
        ) from error
    application = Guard(Application(source), place)
    try:
        server = server_of(application, place.host, place.port)
    except OSError as error:
        raise BadInput(
            f"--listen: {place.host}:{place.port}: {error.strerror or error}; name another HOST:PORT; port 0 means any "
            "free port"
        ) from error
    print(f"dashboard of {source.address}: {place.url(port_of(server))}  (stop with Ctrl-C)", flush=True)
    try:
        server.run()
    finally:
        server.close()


def port_of(server: Any) -> int:
    """Return the port of a server; of a server with several sockets (a name with two addresses), that of the first."""
    listen_addresses = getattr(server, "effective_listen", None)
    return int(listen_addresses[0][1] if listen_addresses else server.effective_port)
