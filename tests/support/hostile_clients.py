"""Clients of the search page that are slow, broken, or hostile: each a function of a seed.

They write their bytes directly to a socket, because no HTTP library sends such requests.
"""

import contextlib
import http.client
import json
import random
import re
import socket
import struct

from photo_search import png

_SECONDS = 0.25  # seconds of silence after which the client stops waiting for an answer
_STATUS = re.compile(rb"HTTP/1\.[01] (\d\d\d) ")


def send(port, data, name="photo.png", k=3, timeout=60):
    """Upload an image as a browser does, over a new connection; return the status and the JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=timeout)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", f"/search?k={k}", _form(data, name), headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def _form(data, name="photo.png", boundary="x", field="image"):
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"'
    return (
        head.encode(errors="surrogateescape")
        + b"\r\n\r\n"
        + data
        + f"\r\n--{boundary}--\r\n".encode()
    )


def _request(line, *headers, body=b"", host="localhost"):
    """Return the bytes of a request. If `host` is None, omit the Host header."""
    lines = [line, *([] if host is None else [f"Host: {host}"]), *headers]
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body


def _post(body, *headers, host="localhost", length=None):
    length = len(body) if length is None else length
    kind = "Content-Type: multipart/form-data; boundary=x"
    return _request(
        "POST /search HTTP/1.1", kind, f"Content-Length: {length}", *headers, body=body, host=host
    )


class Client:
    """A series of hostile clients of one server, some of which keep connections open.

    Args:
        port: port of the server.
    """

    def __init__(self, port):
        self.port = int(port)
        self.held = []

    def attack(self, seed):
        """Run client number `seed`; return its kind and all bytes of the answer."""
        kind = KINDS[seed % len(KINDS)]
        rng = random.Random(seed)
        # Some connections that earlier clients left open send one more byte, and some close.
        rng.shuffle(self.held)
        for connection in self.held[:5]:
            with contextlib.suppress(OSError):
                connection.sendall(b"x")
        while len(self.held) > 700 or (self.held and rng.random() < 0.2):
            self.held.pop().close()
        return kind.__name__.strip("_").replace("_", " "), kind(self, rng)

    def close(self):
        """Close the open connections."""
        for connection in self.held:
            connection.close()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def say(self, *pieces, hold=False):
        """Send pieces as far as the server accepts them, and return the answer."""
        connection = self.connect()
        with contextlib.suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
        if hold:
            self.held.append(connection)
            return b""
        answer = b""
        connection.settimeout(_SECONDS)
        with contextlib.suppress(OSError):
            while part := connection.recv(2**16):
                answer += part
        connection.close()
        return answer


def statuses(answer):
    """Return the status codes in an answer."""
    return [int(code) for code in _STATUS.findall(answer)]


KINDS = []


def _kind(attack):
    """Register a kind of client: a function (client, random) -> bytes of the answer."""
    KINDS.append(attack)
    return attack


@_kind
def _incomplete_head(client, rng):
    whole = _request("GET / HTTP/1.1", "Accept: */*", "Cookie: " + "x" * rng.randrange(3000))
    for _ in range(rng.choice([1, 10, 99])):
        client.say(whole[: rng.randrange(1, len(whole) - 2)], hold=True)
    return b""


@_kind
def _incomplete_body(client, rng):
    body = _form(png(rng.randrange(5)))
    whole = _post(body, length=len(body) + rng.choice([0, 1000, 2**24]))
    for _ in range(rng.choice([1, 10, 99])):
        client.say(whole[: rng.randrange(len(whole) - len(body), len(whole) - 1)], hold=True)
    return b""


@_kind
def _many_connections(client, rng):
    for _ in range(rng.choice([50, 200])):
        client.say(hold=True)
    return b""


_UP = [
    "../",
    "%2e%2e%2f",
    "%252e%252e%252f",
    "..\\",
    "..%c0%af",
    "....//",
    "..%00/",
]


@_kind
def _path_outside_the_folder(client, rng):
    files = [
        "secret.txt",
        "etc/passwd",
        "index/settings.json",
    ]
    path = (
        rng.choice(_UP) * rng.randrange(9)
        + rng.choice(files)
        + rng.choice(["", "%00.png", "?", "#", "/."])
    )
    start = rng.choice(
        [
            "/image/",
            "//",
            "/search?item=",
            "file:///",
            "/static/",
        ]
    )
    method = rng.choice(["GET", "GET", "HEAD", "POST"])
    return client.say(_request(f"{method} {start}{path} HTTP/1.1", "Connection: close"))


@_kind
def _upload_name_outside_the_folder(client, rng):
    name = rng.choice(_UP) * 5 + rng.choice(
        ["etc/passwd", "secret.txt", "a\0b", "\r\nX: y", '"', "\udcff", "x" * 9000]
    )
    return client.say(
        _post(_form(png(1), name, field=rng.choice(["image", "../image", ""])), "Connection: close")
    )


@_kind
def _wrong_host(client, rng):
    hosts = [
        "elsewhere.org",
        None,
        "localhost.elsewhere.org",
        "localhost\r\nHost: elsewhere.org",
        "[",
        "a@localhost",
        "x" * 9000,
        "\udcff",
    ]
    host = rng.choice(hosts)
    origin = rng.choice(
        [[], ["Origin: http://elsewhere.org"], ["Origin: null"], ["Origin: http://["]]
    )
    line = rng.choice(
        ["GET / HTTP/1.1", "GET /search?item=0 HTTP/1.1", "GET http://elsewhere.org/ HTTP/1.1"]
    )
    return client.say(_request(line, *origin, "Connection: close", host=host))


@_kind
def _invalid_form(client, rng):
    boundary = rng.choice(["x", "", "y", "x" * 9000, '"x', "\u00e9", "x; boundary=y", "--x", " "])
    bodies = [
        _form(png(1))[:-8],
        _form(png(1)).replace(b"\r\n", b"\n"),
        b"--x\r\n" * 3000 + b"--x--",
        b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n' * 1500,
        b"--x\r\nContent-Disposition: form-data" + b"; a=b" * 20_000 + b"\r\n\r\n\r\n--x--",
        b"--x--",
        b"",
        b"--x\r\n" + b"A: b\r\n" * 9000 + b"\r\n\r\n--x--",
        b"-" * 100_000,
        _form(_form(png(1))),
        _form(b""),
    ]
    kind = rng.choice(
        [
            "multipart/form-data",
            "application/json",
            "",
        ]
    )
    body = rng.choice(bodies)
    headers = [f"Content-Type: {kind}; boundary={boundary}", f"Content-Length: {len(body)}"]
    return client.say(_request("POST /search HTTP/1.1", *headers, "Connection: close", body=body))


@_kind
def _invalid_image(client, rng):
    whole = png(rng.randrange(5), (64, 48))
    cut = whole[: rng.randrange(len(whole))]
    flipped = bytearray(whole)
    for _ in range(rng.randrange(1, 9)):
        flipped[rng.randrange(len(whole))] = rng.randrange(256)
    vast = whole[:16] + struct.pack(">II", 2**31 - 1, 2**31 - 1) + whole[24:]
    data = rng.choice(
        [cut, bytes(flipped), vast, b"", rng.randbytes(3000), b"GIF89a" + rng.randbytes(99)]
    )
    return client.say(_post(_form(data), "Connection: close"))


@_kind
def _disconnect_during_the_answer(client, rng):
    for _ in range(rng.randrange(1, 20)):
        connection = client.connect()
        connection.sendall(
            rng.choice(
                [
                    _post(_form(png(1))),
                    _request("GET / HTTP/1.1"),
                    _request("GET /image/1 HTTP/1.1"),
                ]
            )
            * rng.randrange(1, 4)
        )
        with contextlib.suppress(OSError):
            connection.settimeout(0.05)
            connection.recv(rng.choice([1, 10, 300]))
        if rng.random() < 0.7:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    return b""
