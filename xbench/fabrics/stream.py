"""One TCP stream between two hosts, which measures the real capacity of a link.

    stream.py receive ADDRESS PORT SECONDS     prints 'ready', then the goodput in bit/s
    stream.py send ADDRESS PORT

It is run by path, so it starts in milliseconds. The receiver alone decides on the end: data still in queues are
dropped, so a slow link costs no more time than a fast one. The first quarter (slow start, and the burst of the token
bucket) does not count.
"""

from __future__ import annotations

import socket
import sys
import time

HEAD_SHARE = 0.25
CHUNK_BYTES = 256 * 1024
PATIENCE_S = 5.0


def receive(address: str, port: int, seconds: float) -> float:
    """Goodput [bit/s] of the first stream that connects, over the last three quarters of `seconds`.

    Raises OSError if a socket fails, TimeoutError if no sender connects or no data come.
    """
    buffer = bytearray(CHUNK_BYTES)
    with socket.create_server((address, port)) as server:
        server.settimeout(PATIENCE_S)
        print("ready", flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        begin = time.perf_counter()
        counted, since = 0, begin
        while True:
            received = connection.recv_into(buffer)
            now = time.perf_counter()
            if received == 0:
                raise ConnectionError("the sender left early")
            if now - begin < seconds * HEAD_SHARE:
                since = now
                continue
            counted += received
            if now - begin >= seconds:
                return 8 * counted / (now - since)


def send(address: str, port: int) -> None:
    """Send zeros until the receiver closes the connection."""
    block = bytes(CHUNK_BYTES)
    with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
        try:
            while True:
                connection.sendall(block)
        except (ConnectionError, TimeoutError):
            return


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(receive(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])), flush=True)
    else:
        send(sys.argv[2], int(sys.argv[3]))
