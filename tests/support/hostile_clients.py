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
def _large_incomplete_body(client, rng):
    client.say(_post(_form(bytes(rng.randrange(2**20, 2**22))), length=2**24), hold=True)
    return b""


@_kind
def _many_connections(client, rng):
    for _ in range(rng.choice([50, 200, 500])):
        client.say(hold=True)
    return b""


@_kind
def _invalid_length(client, rng):
    lengths = [
        "1" + "0" * 12,
        "9" * 40,
        "9" * 6000,
        "-1",
        "+5",
        "0x10",
        "1e3",
        "",
        " ",
        "1 1",
        "²",
        "\0",
        "5,5",
    ]
    body = _form(png(0))
    head = f"Content-Length: {rng.choice(lengths)}"
    more = rng.choice([[], ["Content-Length: 3"], ["Transfer-Encoding: chunked"]])
    return client.say(_request("POST /search HTTP/1.1", head, *more, body=body))


@_kind
def _wrong_length(client, rng):
    body = _form(png(rng.randrange(5)))
    length = max(0, len(body) + rng.choice([-len(body), -200, -10, -1, 1, 50]))
    return client.say(_post(body, length=length))


@_kind
def _chunked_body(client, rng):
    body = _form(png(rng.randrange(5)))
    size = rng.choice(
        [
            f"{len(body):x}",
            "0",
            "-1",
            "f" * 16,
            "g",
            "",
            f"{len(body):x};x=y",
            "0x5",
            "1" * 5000,
            "5\n",
        ]
    )
    ends = rng.choice([b"\r\n0\r\n\r\n", b"", b"\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n", b"\r\n" * 50])
    more = rng.choice([[], ["Content-Length: 5"], ["Transfer-Encoding: gzip"]])
    name = rng.choice(
        ["chunked", "Chunked", "xchunked", "chunked, chunked", "gzip, chunked", "\x0bchunked"]
    )
    headers = ["Content-Type: multipart/form-data; boundary=x", f"Transfer-Encoding: {name}", *more]
    whole = size.encode() + b"\r\n" + body + ends
    return client.say(_request("POST /search HTTP/1.1", *headers, body=whole))


_UP = [
    "../",
    "..%2f",
    "%2e%2e/",
    "%2e%2e%2f",
    "%252e%252e%252f",
    "..%5c",
    "..\\",
    "..%c0%af",
    "%c0%ae%c0%ae/",
    "..%ef%bc%8f",
    "....//",
    "..;/",
    ".%2e/",
    "..%00/",
    "%uff0e%uff0e/",
]


@_kind
def _path_outside_the_folder(client, rng):
    files = [
        "secret.txt",
        "photos/../secret.txt",
        "etc/passwd",
        "settings.json",
        "index/settings.json",
        "a/1.png",
    ]
    path = (
        rng.choice(_UP) * rng.randrange(9)
        + rng.choice(files)
        + rng.choice(["", "%00.png", "?", "#", "/."])
    )
    start = rng.choice(
        [
            "/image/",
            "/",
            "//",
            "/image/0/",
            "/search?item=",
            "/?example=",
            "file:///",
            "http://localhost/image/",
            "",
            "/image/0%2f",
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
        "",
        "localhost.elsewhere.org",
        "localhost\r\nHost: elsewhere.org",
        "[",
        "[::1",
        "a@localhost",
        "localhost:99999999",
        "\x1b[31m",
        "x" * 9000,
        "localhost/../..",
        "127.1",
        "²",
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
            "multipart/mixed",
            "application/json",
            "",
            "application/x-www-form-urlencoded",
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
def _random_bytes(client, rng):
    start = rng.choice([b"", b"GET ", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
    return client.say(start + rng.randbytes(rng.randrange(1, 5000)) + b"\r\n\r\n")


@_kind
def _request_with_changed_bytes(client, rng):
    body = _form(png(rng.randrange(5)))
    whole = bytearray(rng.choice([_post(body), _request("GET /search?item=1&k=3 HTTP/1.1")]))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(whole))
        whole[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return client.say(bytes(whole))


@_kind
def _unusual_request_line(client, rng):
    lines = [
        "TRACE / HTTP/1.1",
        "CONNECT localhost:22 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET /",
        "GET",
        "",
        "GET / HTTP/9.9",
        "get / http/1.1",
        "GET  /  HTTP/1.1",
        "GET /" + "a" * 300_000 + " HTTP/1.1",
        "GET /\x1b[31m HTTP/1.1",
        "GET /%zz HTTP/1.1",
        "GET /?k=%ff%fe HTTP/1.1",
        "GET /image/" + "9" * 5000 + " HTTP/1.1",
        "DELETE /image/0 HTTP/1.1",
        "GET /search?" + "item=0&" * 5000 + " HTTP/1.1",
    ]
    headers = rng.choice(
        [
            [],
            ["A" * 70_000 + ": b"],
            ["A: b"] * 5000,
            ["A\0: b"],
            [": b"],
            [" folded"],
            ["Expect: 100-continue", "Content-Length: 5"],
            ["Upgrade: h2c"],
            ["Range: bytes=0-1,0-2"],
            ["If-None-Match: " + '"x",' * 5000],
            ["Content-Encoding: gzip"],
        ]
    )
    return client.say(_request(rng.choice(lines), *headers, "Connection: close"))


@_kind
def _many_requests_at_once(client, rng):
    each = rng.choice(
        [_request("GET / HTTP/1.1"), _request("GET /search?item=0 HTTP/1.1"), _post(_form(png(1)))]
    )
    return client.say(each * rng.randrange(2, 40))


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


@_kind
def _answers_that_are_not_read(client, rng):
    for _ in range(rng.randrange(1, 10)):
        client.say(_request("GET / HTTP/1.1") * 20, hold=True)
    return b""
