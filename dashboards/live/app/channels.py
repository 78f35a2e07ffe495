"""Connections of the live dashboard that cannot starve other visitors: a deadline for a request, a limit per address.

A request must be complete `REQUEST_S` after its first byte, and a connection without a request is closed after the same
time. An address has at most `MOST_PER_ADDRESS` connections: a further one takes the place of its oldest connection that
waits for a request, so that unfinished requests from an address do not keep out other visitors behind it.

A module of its own: it imports waitress, which only a dashboard that is served needs.
"""

from __future__ import annotations

import time
from typing import Any

from waitress.channel import HTTPChannel
from waitress.server import BaseWSGIServer, create_server

REQUEST_S = 10
MOST_PER_ADDRESS = 32  # a browser opens 6
MOST_CONNECTIONS = 512
HEADER_BYTES = 16 << 10
THREADS = 4


class LimitedChannel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection."""

    begun_s = 0.0

    def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
        """Accept the connection, and close another one of its address if there are too many."""
        super().__init__(server, *arguments, **named)
        channels = [other for other in list(server.active_channels.values()) if other is not self]
        same_address = [other for other in channels if other.addr[0] == self.addr[0] and not other.will_close]
        if len(same_address) >= MOST_PER_ADDRESS:
            waiting_channels = [other for other in same_address if not other.requests]
            min(waiting_channels, key=lambda other: other.creation_time, default=self).will_close = True

    def received(self, data: bytes) -> bool:
        """Take bytes of a request; close the connection if the request takes too long."""
        now_s = time.monotonic()
        if self.request is None:
            self.begun_s = now_s
        elif now_s - self.begun_s > REQUEST_S:
            self.will_close = True
            return False
        return bool(super().received(data))


def server_of(application: Any, host: str, port: int) -> Any:
    """Return a server that listens. Raises OSError."""
    server = create_server(
        application,
        host=host,
        port=port,
        threads=THREADS,
        ident=None,
        connection_limit=MOST_CONNECTIONS,
        channel_timeout=REQUEST_S,
        cleanup_interval=1,
        max_request_header_size=HEADER_BYTES,
        asyncore_use_poll=True,  # select() has a limit of 1,024 open files
    )
    listening = [server, *getattr(server, "map", {}).values()]  # a name with two addresses has two sockets
    for dispatcher in listening:
        if isinstance(dispatcher, BaseWSGIServer):
            dispatcher.channel_class = LimitedChannel
    return server
