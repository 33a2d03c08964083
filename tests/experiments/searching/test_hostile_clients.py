"""Hostile clients of the search page do not block other clients and see no secrets."""

import logging
import subprocess
import sys
import time

import pytest
from hostile_clients import KINDS, Client, send, statuses
from photo_search import answering, make_index, png
from trials import Tally, seeds

pytest.importorskip("flask")
pytest.importorskip("waitress")


SECRET = b"the contents of a file beside the photos"
# Contents of files that no answer may include.
OUTSIDE = (SECRET, b"root:x:0", b'"fingerprint"', b"sha256")
LONGEST = 15  # seconds until a valid request is answered, on a busy machine


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for place in (folder, folder / "photos"):
        place.mkdir(exist_ok=True)
        (place / "secret.txt").write_bytes(SECRET)
    return make_index(folder)


def good_request(port):
    """Return the seconds until a valid upload is answered, and the error or None.

    Repeats the upload if the server is busy (503).
    """
    began, last = time.monotonic(), None
    while (took := time.monotonic() - began) < LONGEST:
        try:
            status, answer = send(port, png(1), timeout=LONGEST - took)
        except OSError as error:
            last = repr(error)
            break
        if status == 200 and answer["neighbours"][0]["path"] == "a/1.png":
            return time.monotonic() - began, None
        last = f"{status} {answer}"
        if status != 503:
            break
        time.sleep(0.5)
    return time.monotonic() - began, last


def try_all(port, trials, tally):
    """Run hostile clients, each followed by a valid request. Return the slowest request's time."""
    client, slowest = Client(port), 0.0
    for seed in trials:
        kind, answer = client.attack(seed)
        found = statuses(answer)
        if any(secret in answer for secret in OUTSIDE):
            tally.fail(seed, f"{kind}: the answer includes a secret")
        elif any(status >= 500 and status not in (501, 503, 505) for status in found):
            tally.fail(seed, f"{kind}: answered {answer[:300]!r}")
        else:
            tally.add(f"answered {found[0]}" if found else "not answered")
        took, wrong = good_request(port)
        slowest = max(slowest, took)
        if wrong is not None:
            tally.fail(seed, f"{kind}: then a good request ended after {took:.1f} s: {wrong}")
            break
    client.close()
    return slowest


@pytest.fixture
def running(index):
    """Port of a server in a thread of this process."""
    with answering(index) as server:
        yield server.effective_port


@pytest.mark.slow
def test_one_hostile_client_of_each_kind(running, caplog, capsys):
    tally = Tally("hostile clients")
    with caplog.at_level(logging.WARNING):
        try_all(running, seeds(len(KINDS)), tally)
    tally.check(capsys)
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.slow
@pytest.mark.thorough
def test_many_hostile_clients(index, tmp_path, capsys):
    command = [sys.executable, "-m", "experiments.search", f"--index={index}", "--serve"]
    tally = Tally("hostile clients")
    with (
        open(tmp_path / "stderr", "wb") as stderr,
        subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            address = process.stdout.readline().decode()
            slowest = try_all(address.rpartition(":")[2].split()[0], seeds(30 * len(KINDS)), tally)
            assert process.poll() is None, "the server has ended"
        finally:
            process.kill()
            process.wait()
    said = (tmp_path / "stderr").read_bytes()
    with capsys.disabled():
        print(f"\nslowest good request: {slowest:.2f} s; on the terminal: {len(said)} bytes")
    tally.check(capsys)
    assert b"Traceback" not in said and b"\x1b" not in said, said.decode(errors="replace")
