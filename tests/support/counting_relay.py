"""A relay between a client and a server on this machine, which counts the bytes of the server's answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CountingRelay:
    """A relay to a port; `num_bytes` counts the bytes of all answers, with their headers."""

    def __init__(self, port: int) -> None:
        self._port, self._lock, self.num_bytes = port, threading.Lock(), 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._relay, args=(self._listening.accept()[0],), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            asking = threading.Thread(target=self._copy, args=(client, server, 0), daemon=True)
            asking.start()
            self._copy(server, client, 1)
            asking.join()

    def _copy(self, source: socket.socket, target: socket.socket, counts: int) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                with self._lock:
                    self.num_bytes += counts * len(content)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()


@contextmanager
def counting_relays(port: int, count: int) -> Iterator[list[CountingRelay]]:
    """Yield relays to a port while the block runs."""
    relays = [CountingRelay(port) for _ in range(count)]
    try:
        yield relays
    finally:
        for relay in relays:
            relay.close()
