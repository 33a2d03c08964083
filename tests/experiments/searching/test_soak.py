"""Many searches on the local page do not leak memory."""

import io
import subprocess
import sys

import pytest
from memory import growth, private_kilobytes
from photo_search import make_index, picture, png, send

pytest.importorskip("flask")
pytest.importorskip("waitress")

REQUESTS, AT_A_TIME = 3000, 20
LARGE, AS_LARGE = 10, (6000, 4000)  # 24 million pixels are 288 MB as float32
MOST_KILOBYTES = 1.0  # growth per request


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Process id and port of a server."""
    index = make_index(tmp_path_factory.mktemp("soak"))
    command = [sys.executable, "-m", "experiments.search", f"--index={index}", "--serve"]
    with subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline()
        yield process.pid, int(address.rpartition(":")[2].split()[0])
        process.kill()


@pytest.mark.slow
@pytest.mark.thorough
def test_memory_of_many_searches_and_of_large_uploads_is_freed(server, capsys):
    """Version 0.1.0 kept 870 MB after two large uploads."""
    process, port = server
    sizes = []
    for turn in range(REQUESTS // AT_A_TIME):
        for number in range(AT_A_TIME):
            assert send(port, png(turn * AT_A_TIME + number, (40, 40)))[0] == 200
        sizes.append(private_kilobytes(process))
    more = growth(sizes) / AT_A_TIME
    file = io.BytesIO()
    picture(0, AS_LARGE).save(file, "JPEG")
    for _ in range(LARGE):
        assert send(port, file.getvalue())[0] == 200
    kept = (private_kilobytes(process) - sizes[-1]) / 1024
    with capsys.disabled():
        print(f"\n{REQUESTS} searches: {more:.3f} kB growth each; {LARGE} uploads: {kept:.0f} MB")
    assert more < MOST_KILOBYTES and kept < 200
