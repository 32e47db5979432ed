"""When the tokens of an answer come: what a benchmark reads of ``/v1``."""

import socket
import time

from p2pmesh.base.errors import ErrorCode, Refused

REQUEST_TIMEOUT_S = 300.0
MAX_LINE_CHARACTERS = 1 << 20
_EVENT = b"data: {"


def stream_token_times(api_url: str, body: bytes) -> list[float]:
    """When each event of a stream arrived. A bare socket: a client library would be measured as part of the peers."""
    host, port = api_url.removeprefix("http://").rsplit(":", 1)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    times: list[float] = []
    with socket.create_connection((host, int(port)), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(head.encode() + body)
        tail = b""
        while True:
            data = connection.recv(65_536)
            now = time.perf_counter()
            if not data:
                return times
            if not times and not tail and b" 200 " not in data.split(b"\r\n", 1)[0]:
                text = data[:MAX_LINE_CHARACTERS].decode("utf-8", "replace").splitlines()
                raise Refused(ErrorCode.INTERNAL, f"a peer of the benchmark answered {text[0]}: {text[-1]}")
            times += [now] * ((tail + data).count(_EVENT) - tail.count(_EVENT))
            tail = data[-(len(_EVENT) - 1) :]


def tokens_per_s(times: list[float], expected: int) -> float:
    """From the first to the last of ``times``; ``Refused`` where less than half of ``expected`` tokens came."""
    if len(times) < max(2, expected // 2):
        text = f"the model stopped after {len(times)} tokens; take another --model or fewer --tokens"
        raise Refused(ErrorCode.INTERNAL, text)
    return (len(times) - 1) / (times[-1] - times[0])
