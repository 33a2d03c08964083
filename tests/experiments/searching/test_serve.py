"""The search page's server: answers, errors, and a server process under load."""

import concurrent.futures
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from unittest import mock

import processes
import pytest
import tiers
from memory import growth, private_kilobytes
from photo_search import answering, picture, png, send
from PIL import Image

pytest.importorskip("flask")
pytest.importorskip("waitress")

from experiments.evaluation.calibration import Calibration, calibration_path, write_calibration
from experiments.searching import serve, visual_search
from experiments.searching.answer import Answer, SearchResult, answers_text
from experiments.searching.columns import Columns
from experiments.searching.gallery import FolderGallery
from experiments.searching.store import StoreError
from experiments.searching.visual_search import VisualSearch
from keras_dml.export.load import fingerprint


def client_of(*search, **more):
    """Return a client of the page for a search in an index."""
    return serve.create_app(VisualSearch(*search), **more).test_client()


@pytest.fixture(scope="module")
def client(index):
    return client_of(index)


def upload(client, data, name="photo.png", address="/search?k=3", **more):
    form = {"image": (io.BytesIO(data), name)}
    return client.post(address, data=form, content_type="multipart/form-data", **more)


@pytest.mark.slow
def test_search_by_an_uploaded_image(client):
    answer = upload(client, png(1))
    assert answer.status_code == 200
    found = answer.json["neighbours"]
    assert [one["rank"] for one in found] == [1, 2, 3]
    first = {"rank": 1, "item": 2, "path": "a/1.png", "class": "a", "similarity": 1.0}
    assert found[0] == first | {"alike": [], "image": "/image/2"}
    picture_of_it = client.get(found[0]["image"])
    assert picture_of_it.mimetype == "image/png"
    assert Image.open(io.BytesIO(picture_of_it.data)).tobytes() == picture(1).tobytes()
    again = client.get("/image/2", headers={"If-None-Match": picture_of_it.headers["ETag"]})
    assert again.status_code == 304
    for address in ("/search?k=100", "/search"):
        assert len(upload(client, png(1), address=address).json["neighbours"]) == 5


def test_conditions(client):
    def found(given):
        answer = client.get(f"/search?item=2&{given}")
        assert answer.status_code == 200, answer.text
        return answer.json

    assert [one["path"] for one in found("where=class:c")["neighbours"]] == ["b/c/2.bmp"]
    answer = found("where=class:c&where=class:a&k=5&min_similarity=-1")
    assert answer["allowed"] == 2 and len(answer["classes"]) == 2
    answer = found("where=class:b&where=folder:c&group_similarity=0")
    assert answer["neighbours"] == [] and answer["nothing"].startswith("no image of the index")
    answer = found("min_similarity=1")
    assert answer["nothing"] == f"nothing similar enough: the nearest has {answer['nearest']:.4f}"
    uploaded = upload(client, png(1), address="/search?k=1&where=class:b").json["neighbours"]
    assert [one["path"] for one in uploaded] == ["b/3.gif"]


def test_columns(client, index):
    columns = client.get("/columns").json["columns"]
    assert [one["name"] for one in columns] == ["class", "folder"]
    assert columns[1]["values"][:2] == [{"value": "a", "count": 2}, {"value": "b", "count": 2}]
    search = VisualSearch(index)
    search.columns = Columns([f"{row}/x.png" for row in range(serve.MOST_VALUES + 7)])
    columns = serve.create_app(search).test_client().get("/columns").json["columns"]
    assert [(len(one["values"]), one["others"]) for one in columns] == [(serve.MOST_VALUES, 7)] * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("where=colour:red", "where must be COLUMN:VALUE, with a column of class, folder, but got"),
        ("where=class:aa", "no image has class=aa. Did you mean a?"),
        ("where=class:" + "x" * 5000, "no image has class=xxx"),
        ("min_similarity=nan", "min_similarity must be a number from -1 to 1."),
        ("min_similarity=" + "9" * 5000, "min_similarity must be a number from -1 to 1."),
        ("group_similarity=-0.1", "group_similarity must be a number from 0 to 1."),
        ("k=0", "k must be a number from 1 to 100"),
        ("k=101", "k must be a number from 1 to 100"),
        ("k=" + "9" * 5000, "k must be a number from 1 to 100"),
    ],
)
def test_invalid_conditions(client, given, message):
    for answer in (
        client.get(f"/search?item=2&{given}"),
        upload(client, png(1), address=f"/search?{given}"),
    ):
        assert answer.status_code == 400 and answer.json["error"].startswith(message)
        assert len(answer.json["error"]) < 500


def test_the_query_is_hidden_until_the_browser_can_show_it(client):
    script = client.get("/").text.partition("function showQuery")[2].partition("\n}\n")[0]
    hides, shows, sets = map(script.index, ("hidden = true", "onload = ", "image.src = source"))
    assert hides < shows < sets and "image.hidden = false" in script[shows:sets]


def test_a_request_has_few_conditions(client):
    same = "&where=class:a" * 1000
    assert client.get(f"/search?item=2{same}").json["allowed"] == 1
    for count, status in [
        (20, "no image has class="),
        (21, "where must have at most 20 conditions"),
    ]:
        other = "".join(f"&where=class:x{number}" for number in range(count))
        for answer in (
            client.get(f"/search?item=2{other}"),
            upload(client, png(1), address=f"/search?k=1{other}"),
        ):
            assert answer.status_code == 400 and answer.json["error"].startswith(status)


def test_the_page_is_self_contained(client):
    page = client.get("/")
    text = page.text
    assert "5 images of photos" in text and "/?example=4" in text and "up to 16 MB" in text
    assert not re.findall(r"https?://", text)
    policy = page.headers["Content-Security-Policy"]
    (nonce,) = set(re.findall("nonce-([^']*)'", policy))
    assert text.count(f'nonce="{nonce}"') == text.count("<style") + text.count("<script") == 2
    assert policy.startswith("default-src 'none'") and nonce not in client.get("/").text
    assert page.headers["X-Content-Type-Options"] == "nosniff"


def test_file_names_of_uploads_are_ignored(client):
    for name in ("../../../etc/passwd", "a\0b.png"):
        answer = upload(client, png(1), name)
        assert answer.status_code == 200 and answer.json["neighbours"][0]["path"] == "a/1.png"
    for address in ("/image/../settings.json", "/image/..%2fsettings.json", "/image/a/1.png"):
        assert client.get(address).status_code == 404
    for item in ("5", "-1", "x", "1.5", "²", "", "9" * 5000):
        assert client.get(f"/image/{item}").status_code == 404
        assert client.get(f"/search?item={item}").status_code == 404


def test_invalid_uploads(client):
    for data, reason in [
        (b"no image", "not a JPEG, PNG, WebP, BMP or GIF image."),
        (b"", "not a JPEG"),
        (png(1, (300, 300))[:200], "a truncated PNG"),
        (b"\0\0\0\x18ftypheic" + bytes(30), "not a JPEG, PNG, WebP, BMP or GIF image: HEIC"),
    ]:
        error = upload(client, data, "photo.jpg")
        assert error.status_code == 400
        assert error.json["error"].startswith(f"This file cannot be searched: {reason}")
    large = upload(client, bytes(serve.MOST_BYTES + 1))
    assert large.status_code == 413
    assert large.json == {"error": "The upload is too large: at most 16 MB."}
    for form in (png(1), {"k": "3"}, {"image": [(io.BytesIO(png(1)), "a.png")] * 2}):
        answer = client.post("/search", data=form)
        assert answer.status_code == 400 and "Send one image as the field" in answer.json["error"]


def test_requests_from_other_sites_are_refused(client):
    for origin in ("http://elsewhere.org", "null", "http://localhost:1", "http://[bad"):
        answer = upload(client, png(1), headers={"Origin": origin})
        assert answer.status_code == 403 and "other sites" in answer.json["error"]
    assert upload(client, png(1), headers={"Origin": "http://localhost"}).status_code == 200


def test_only_local_and_allowed_hosts_are_served(client, index):
    assert client.get("/", headers={"Host": "photos.example:80"}).status_code == 403
    client = client_of(index, allowed_hosts=["Photos.example"])
    for name, code in [
        ("elsewhere.org", 403),
        ("127.0.0.1.elsewhere.org:8000", 403),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("LOCALHOST:8000", 200),
        ("[", 403),
        ("x.photos.example", 403),
        ("photos.example:80", 200),
    ]:
        assert client.get("/", headers={"Host": name}).status_code == code, name


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def test_cross_site_requests_of_a_browser_are_refused(client):
    """Like `<img src="http://127.0.0.1:8000/search?item=0">` on a page of another site."""
    site = {"Sec-Fetch-Site": "cross-site"}
    for address in ("/search?item=0", "/image/2", "/columns", "/"):
        for more in ({}, NAVIGATION, {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}):
            answer = client.get(address, headers={**site, **more})
            is_link = address == "/" and more == NAVIGATION
            assert answer.status_code == (200 if is_link else 403)
    assert upload(client, png(1), headers=site).status_code == 403
    for ours in ("same-origin", "none"):
        assert client.get("/columns", headers={"Sec-Fetch-Site": ours}).status_code == 200


def test_an_invalid_host(index):
    with pytest.raises(ValueError, match="host must be a name or address .* got a b"):
        serve.open_server(VisualSearch(index), "a b", 0)


def test_a_store_that_does_not_answer(client, monkeypatch):
    gone = mock.Mock(side_effect=StoreError("gone"))
    monkeypatch.setattr(FolderGallery, "nearest", gone)
    for answer in (client.get("/search?item=1"), upload(client, png(1))):
        assert answer.status_code == 503 and "The store" in answer.json["error"]


@pytest.mark.slow
def test_a_missing_image(index, tmp_path):
    moved = shutil.copytree(index.parent / "photos", tmp_path / "moved")
    client = serve.create_app(VisualSearch(index, images=moved)).test_client()
    (moved / "a" / "1.png").unlink()
    for address in ("/image/2", "/search?item=2"):
        answer = client.get(address)
        assert answer.status_code == 404 and "gone" in answer.json["error"]
    assert client.get("/search?item=0").status_code == 200


def test_slow_images_do_not_block_later_requests(index, monkeypatch):
    monkeypatch.setattr(visual_search, "_PATIENCE", 0.1)
    search = VisualSearch(index)
    client = serve.create_app(search).test_client()
    with search._slot(), search._slot():
        for answer in (upload(client, png(1)), client.get("/search?item=0")):
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
            assert answer.json["error"].startswith("Too many searches at once")
        assert client.get("/").status_code == client.get("/image/2").status_code == 200
    for data, status in ((png(1), 200), (b"no image", 400), (png(1), 200)):
        assert upload(client, data).status_code == status


HOSTILE = "a\u202egnp.\x1b[31m\u2066\n.png"
SHOWN = r"a\u202egnp.\u001b[31m\u2066\u000a.png"


def test_control_characters_in_names_are_escaped(index):
    search = VisualSearch(index)
    search._paths[0] = HOSTILE
    page = serve.create_app(search).test_client().get("/").text
    assert SHOWN in page and "\u202e" not in page
    answers = [(HOSTILE, Answer((SearchResult(0, HOSTILE, 1.0, HOSTILE),)))]
    assert answers_text("cosine", answers).count(SHOWN) == 3


@pytest.mark.slow
def test_incomplete_requests_do_not_block_others_and_time_out(index, monkeypatch):
    monkeypatch.setattr(serve, "_SECONDS_TO_ARRIVE", 1)
    monkeypatch.setattr(serve, "_SECONDS_BETWEEN_LOOKS", 0.2)
    half = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with answering(index) as server:
        port = server.effective_port
        idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(150)]
        for connection in idle:
            connection.sendall(half)
        assert send(port, png(1))[0] == 200
        for connection in idle:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""  # closed


def started(index, port):
    """Start a server process."""
    words = ["-m", "experiments.search", f"--index={index}", "--serve", f"--port={port}"]
    return processes.start(*words)


@pytest.fixture
def server(index):
    with started(index, 0) as process:
        address = process.stdout.readline()
        yield process, re.match(r"http://127\.0\.0\.1:(\d+) ", address)[1]
        process.kill()


@tiers.thorough
def test_a_server_process_under_load(server, index):
    process, port = server
    assert send(port, os.urandom(20 * 2**20))[0] == 413
    paths = ["a/0.png", "a/1.png", "b/c/2.bmp", "b/3.gif", "4.webp"]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        jobs = [pool.submit(send, port, png(seed % 5)) for seed in range(50)]
        bad = [pool.submit(send, port, b"no image", "photo.jpg") for _ in range(10)]
    for seed, job in enumerate(jobs):
        status, answer = job.result()
        # Lossy formats change the pixels, but the image stays the nearest.
        assert status == 200 and answer["neighbours"][0]["path"] == paths[seed % 5]
    assert {job.result()[0] for job in bad} == {400}

    second = started(index, port)
    _, said = second.communicate()
    assert second.returncode == 2
    assert f"--port={port} cannot be bound (Address already in use)" in said
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "ended\n") and time.monotonic() - start < 10
    assert "Traceback" not in err and "note:" not in err


CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"),
    # Send no requests to other servers.
    *("--disable-quic", "--no-first-run", "--disable-sync", "--disable-background-networking"),
    "--disable-component-update",
]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def page_in_browser(folder, address):
    """Return the HTML of a page after its script has run."""
    command = [BROWSER, *CHROMIUM, f"--user-data-dir={folder}", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")
def test_the_page_in_a_browser(server, tmp_path):
    host, where = f"http://127.0.0.1:{server[1]}", "&where=folder%3Aa&where=folder%3Ab"
    with urllib.request.urlopen(f"{host}/search?item=0&k=5{where}") as answer:
        expected = json.load(answer)
    page = page_in_browser(tmp_path, f"{host}/?example=0{where}")
    assert '<h2 id="status" role="status">The 4 nearest images</h2>' in page
    assert '<span class="name" title="4.webp">' in page
    cards = re.findall(r"<li>(.*?)</li>", page.partition('id="results"')[2].partition("</ol>")[0])
    for card, found in zip(cards, expected["neighbours"], strict=True):
        address = f"/?example={found['item']}&amp;k=10{where.replace('&', '&amp;')}"
        assert f'href="{address}" title="{found["path"]}"' in card
        assert f"<b>{found['similarity']:.3f}</b>" in card
        assert f'<img src="{found["image"]}"' in card
    chips = re.findall('<button type="button"[^>]*>([^<]*)</button>', page)
    classes = [f"{one['class']}, {one['count']} of 4" for one in expected["classes"]]
    assert chips == ["folder:a ×", "folder:b ×", *classes]
    page = page_in_browser(tmp_path, f"{host}/?example=0&where=class:aa")
    error = "No image has class=aa. Did you mean a? Click a condition above to remove it."
    assert f'role="alert">{error}</p>' in page
    assert '<figure id="query">' in page  # not hidden


def test_the_answer_reports_matches(index, tmp_path):
    model = shutil.copytree(index.parent / "model", tmp_path / "model")
    calibration = Calibration("cosine", 0.999, 1e-3, fingerprint(model))
    write_calibration(calibration_path(model), calibration)
    client = client_of(index, model)
    found = client.get("/search?item=1&k=5").json
    assert found["threshold"] == 0.999
    assert [each["match"] for each in found["neighbours"]] == [False] * 4
    uploaded = upload(client, png(1), address="/search?k=2").json
    assert [each["match"] for each in uploaded["neighbours"]] == [True, False]
    assert "A match: similarity of at least 0.9990" in client.get("/").text


@tiers.thorough
def test_memory_of_many_searches_and_of_large_uploads_is_freed(server, capsys):
    """Version 0.1.0 kept 870 MB after two large uploads."""
    process, port = server
    sizes, at_a_time = [], 20
    for turn in range(3000 // at_a_time):
        for number in range(at_a_time):
            assert send(port, png(turn * at_a_time + number, (40, 40)))[0] == 200
        sizes.append(private_kilobytes(process.pid))
    more = growth(sizes) / at_a_time
    file = io.BytesIO()
    picture(0, (6000, 4000)).save(file, "JPEG")  # 288 MB as float32
    for _ in range(10):
        assert send(port, file.getvalue())[0] == 200
    kept = (private_kilobytes(process.pid) - sizes[-1]) / 1024
    with capsys.disabled():
        print(f"\n3000 searches: {more:.3f} kB growth each; 10 uploads: {kept:.0f} MB")
    assert more < 1.0 and kept < 200
