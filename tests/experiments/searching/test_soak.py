"""Many searches of the local page: no memory more with each."""

import io
import subprocess
import sys

import pytest
from hostile_clients import send
from memory import growth, private_kilobytes
from photo_search import make_index, picture, png

pytest.importorskip("flask")
pytest.importorskip("waitress")

REQUESTS, AT_A_TIME = 3000, 20
LARGE, AS_LARGE = 10, (6000, 4000)  # 24 million pixels: 288 MB as numbers
MOST_KILOBYTES = 1.0  # more with each request


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Process and port."""
    index = make_index(tmp_path_factory.mktemp("soak"))
    command = [sys.executable, "-m", "experiments.search", f"--index={index}", "--serve"]
    with subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline()
        yield process.pid, int(address.rpartition(":")[2].split()[0])
        process.kill()


@pytest.mark.slow
@pytest.mark.thorough
def test_many_searches(server, capsys):
    process, port = server
    held = []
    for turn in range(REQUESTS // AT_A_TIME):
        for number in range(AT_A_TIME):
            status, _ = send(port, png(turn * AT_A_TIME + number, (40, 40)))
            assert status == 200
        held.append(private_kilobytes(process))
    more = growth(held) / AT_A_TIME
    with capsys.disabled():
        print(f"\n{REQUESTS} searches: {more:.3f} kB more with each; {held[-1]:,} kB at the end")
    assert more < MOST_KILOBYTES


@pytest.mark.slow
@pytest.mark.thorough
def test_the_memory_of_large_uploads_is_given_back(server, capsys):
    """0.1.0 kept 870 MB of the first two."""
    process, port = server
    send(port, png(0))
    before = private_kilobytes(process)
    file = io.BytesIO()
    picture(0, AS_LARGE).save(file, "JPEG")
    for _ in range(LARGE):
        status, _ = send(port, file.getvalue())
        assert status == 200
    kept = (private_kilobytes(process) - before) / 1024
    with capsys.disabled():
        print(f"\n{LARGE} uploads of 24 million pixels: {kept:.0f} MB more are held")
    assert kept < 200
