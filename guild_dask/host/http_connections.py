"""Limits the connections to an HTTP server of this process: each takes a file descriptor, before it proves anything."""

from typing import Any

# More than browsers with some open pages of plots need.
MOST = 100


def limit(server: Any, most: int = MOST) -> None:
    """Lets a server of Tornado's close new connections while it has so many."""
    accept = server.handle_stream

    def accept_if_few(stream: Any, address: Any) -> Any:
        if len(server._connections) >= most:
            return stream.close()
        return accept(stream, address)

    server.handle_stream = accept_if_few
