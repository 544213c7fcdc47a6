"""What idle connections cost the gateway: memory before and after a thousand of them.

    python -m tools.idle_connections [--connections 1000] [--http2]

Each connection asks once and then stays open. Prints the resident memory of the gateway and
ends with 1 when it grew by more than ``--limit-mib``.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
import time

import psutil

from hybridgen.client import Client
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree

PORT = 18_099
ADDRESS = ("127.0.0.1", PORT)
HTTP1 = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
#: The preface, empty SETTINGS and, as stream 1, GET / in indexed headers.
HTTP2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    b"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41\x01x"
)
MIB = 1 << 20
#: A connection is counted once its first bytes have come, and memory once it stands still.
SETTLE_S = 1.0


def main() -> int:
    """Start a tree, connect, measure; the exit code."""
    options = _parse()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, options.connections + 256), hard))
    config = config_from_options(
        {
            "model": "mock",
            "num_gateways": 1,
            "port": PORT,
            "max_connections": options.connections * 2,
        }
    )
    request = HTTP2 if options.http2 else HTTP1
    with start_tree(config) as handle, Client(handle.uri) as client:
        pid = next(p.pid for p in client.ps().processes if p.role == "gateway")
        gateway = psutil.Process(pid)
        ask(request).close()  # what the first connection ever costs is not theirs
        before = settled_rss(gateway)
        sockets = [ask(request) for _ in range(options.connections)]
        after = settled_rss(gateway)
        for connection in sockets:
            connection.close()
    grown = (after - before) / MIB
    print(
        f"{options.connections} idle connections (HTTP/{2 if options.http2 else 1}): "
        f"{before / MIB:.1f} → {after / MIB:.1f} MiB, {grown:.1f} MiB more, "
        f"{(after - before) / options.connections / 1024:.1f} KiB each"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return int(grown > options.limit_mib)


def ask(request: bytes) -> socket.socket:
    """A connection on which one request was answered."""
    connection = socket.create_connection(ADDRESS, timeout=10.0)
    connection.sendall(request)
    if not connection.recv(1 << 16):
        raise SystemExit("the gateway closed a connection")
    return connection


def settled_rss(process: psutil.Process) -> int:
    """Resident bytes once nothing happens any more."""
    time.sleep(SETTLE_S)
    return int(process.memory_info().rss)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--http2", action="store_true")
    parser.add_argument("--limit-mib", type=float, default=100.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
