"""Damaged images: all readers agree to read them, or to refuse them in one line."""

import json
import os
import pathlib
import select
import subprocess
import sys

import mutated_images
import pytest
from trials import Tally, seeds

pytest.importorskip("flask")
pytest.importorskip("waitress")

_SUPPORT = pathlib.Path(mutated_images.__file__).parent
_SECONDS = 5  # per image and core, after all functions are traced
_MEGABYTES = 200  # for an image of at most 100,000 pixels
_PATIENCE = 120


class Reader:
    """A process of `image_reader`, restarted if an image crashes it."""

    def __init__(self, folder):
        self._folder, self._process, self._starts = folder, None, 0
        self._ahead = b""

    def ask(self, question, patience=_PATIENCE):
        """Return its answer, or {"fault": how it ended}."""
        if self._process is None:
            self._start()
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(patience)
        if answer is not None:
            return answer
        running = self._process.poll() is None
        self.end()
        if running:
            return {"fault": f"no answer in {patience} s"}
        return {"fault": f"the process ended, {self._process.returncode}"}

    def end(self):
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, ended = None, self._process
            ended.stdin.close()
            ended.stdout.close()

    def _start(self):
        self._starts += 1
        self._ahead = b""
        paths = [*sys.path, str(_SUPPORT), str(_SUPPORT.parents[1])]
        self._process = subprocess.Popen(
            [sys.executable, str(_SUPPORT / "image_reader.py"), self._folder / str(self._starts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        while (said := self._answer(_PATIENCE)) != "ready":
            assert said is not None, "image_reader does not start"
        # Tracing on the first use takes seconds.
        first = self._folder / "first.jpg"
        for _, content in mutated_images.good_images():
            first.write_bytes(content)
            self.ask(str(first))

    def _answer(self, patience):
        # A separate buffer, because `select` does not see the data that a stream has read ahead.
        while True:
            line, found, self._ahead = self._ahead.partition(b"\n")
            if found:
                try:
                    return json.loads(line)
                except ValueError:  # a line that a command prints
                    continue
            self._ahead = line
            output = self._process.stdout
            if not select.select([output], [], [], patience)[0]:
                return None
            more = os.read(output.fileno(), 2**16)
            if not more:
                self._process.wait()
                return None
            self._ahead += more


def fault_of(found):
    """Return the fault of a reader on this image, or None."""
    if "fault" in found:
        return found["fault"]
    if found["seconds"] > _SECONDS or found["megabytes"] > _MEGABYTES:
        return f"took {found['seconds']:.1f} s, {found['megabytes']:.0f} MB"
    reasons = [found[name] for name in ("check", "check in memory", "first bytes", "thumbnail")]
    if any(
        "\n" in reason or not reason or "Graph" in reason
        for reason in reasons
        if reason is not None
    ):
        return f"no line: {reasons}"
    if (found["check"] is None) != (found["check in memory"] is None):
        return f"checked differently: {found}"
    if found["check"] is None and (found["evaluation"] or any(found["training"])):
        return f"accepted by the check, not by a training: {found}"
    if found["check"] is None and found["first bytes"]:
        return f"accepted by the check, not by its first bytes: {found}"
    if found["check"] and not found["whole"] and "scans" not in found["check"]:
        return f"refused by the check, but decoded: {found}"
    status, said = found["upload"]
    if status not in (200, 400) or (status == 400 and "cannot be searched: " not in said):
        return f"upload: {status} {said}"
    # Search and training read a crop of a JPEG that is damaged below the crop.
    if status == 200 and found["check"] and not found["check"].startswith("jpeg"):
        return f"refused by the check, but searched: {found}"
    if found.get("turned otherwise"):
        return f"a thumbnail is turned another way: {found}"
    return None


def fuzz(count, tmp_path):
    tally = Tally("mutated images")
    reader = Reader(tmp_path)
    read = []
    try:
        for seed in seeds(count):
            what, name, content = mutated_images.mutated_image(seed)
            path = tmp_path / name
            path.write_bytes(content)
            found = reader.ask(str(path))
            fault = fault_of(found)
            if fault:
                tally.fail(seed, f"{what}: {fault}")
                continue
            if found["check"] is None:
                read.append(str(path))
                same = found["upload"][0] == 200 and found["thumbnail"] is None
                tally.add("read" if same else "read, but not searched or shown (by Pillow)")
            else:
                tally.add("refused in one line")
        if read:
            found = reader.ask(read, patience=600)
            if found.get("images", 0) < len(read):
                tally.fail(-1, f"batches of {len(read)} images that are read: {found}")
    finally:
        reader.end()
    return tally


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(3000, marks=pytest.mark.thorough)])
def test_damaged_images(count, tmp_path, capsys):
    fuzz(count, tmp_path).check(capsys)
