"""Bad images are found with their reason, and too expensive ones by their first bytes."""

import io
import re
import time
import zlib

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from image_files import animated, encode, png, readable_files, smooth

from experiments.pages.pictures import checked_picture, thumbnail
from pipelines import (
    BatchSource,
    EvaluationTransform,
    ImageTable,
    RandomSampler,
    TrainTransform,
    evaluation_batches,
    find_bad_images,
)
from pipelines.images import file_checks
from pipelines.images.decode import decode_image

SMALL = readable_files(50, 40)
REFUSED = "an image of more than 50 million pixels"


def put(data, *places):
    """Return the bytes with replaced parts."""
    changed = bytearray(data)
    for start, part in places:
        changed[start : start + len(part)] = part
    return bytes(changed)


SIDE = 12_000
LITTLE = SIDE.to_bytes(4, "little")
JPEG, TURNED = SMALL["jpeg"], SMALL["jpeg_turned_6"]
FILES = {
    "PNG": png(SIDE, SIDE, 1, 0, bytes((SIDE + 7) // 8 + 1) * SIDE),
    "JPEG": put(JPEG, (JPEG.index(b"\xff\xc0") + 5, SIDE.to_bytes(2) * 2)),
    "turned JPEG": put(TURNED, (TURNED.index(b"\xff\xc0") + 5, SIDE.to_bytes(2) * 2)),
    "BMP": put(SMALL["bmp"], (18, LITTLE * 2)),
    "BMP from the top": put(SMALL["bmp"], (18, LITTLE + (2**32 - SIDE).to_bytes(4, "little"))),
    "BMP of 2^31": put(SMALL["bmp"], (18, b"\xff\xff\xff\x7f\0\0\0\x80")),
    "GIF": b"GIF89a" + SIDE.to_bytes(2, "little") * 2 + b"\0\0\0,\0\0\0\0" + bytes(9),
    "lossy WebP": put(SMALL["webp_lossy"], (26, SIDE.to_bytes(2, "little") * 2)),
    "lossless WebP": put(SMALL["webp"], (21, ((SIDE - 1) * (1 + 2**14)).to_bytes(4, "little"))),
    "WebP with EXIF": put(SMALL["webp_turned_2"], (24, (SIDE - 1).to_bytes(3, "little") * 2)),
}


@pytest.mark.parametrize("name", FILES)
def test_header_is_enough_to_refuse_every_format(name):
    encoded = FILES[name]
    assert len(encoded) < 20_000
    for read in (decode_image, tf.function(decode_image)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
            read(tf.constant(encoded))
    assert find_bad_images(ImageTable.from_encoded([encoded], [0])) == [(0, "image 0", REFUSED)]


AT_LIMIT = {
    name: SMALL[name]
    for name in ("png", "jpeg", "bmp", "webp_lossy", "webp", "webp_turned_2", "gif")
} | {"BMP from the top": put(SMALL["bmp"], (22, (2**32 - 40).to_bytes(4, "little")))}


@pytest.mark.parametrize("name", AT_LIMIT)
def test_image_at_the_limit_is_accepted(name):
    assert decode_image(AT_LIMIT[name], max_pixels=2000).shape == (40, 50, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="an image of more than 1,999 pixels"):
        decode_image(AT_LIMIT[name], max_pixels=1999)


@pytest.mark.parametrize("transform", [EvaluationTransform, TrainTransform])
def test_transforms_respect_the_limit(transform):
    arguments = [tf.constant(JPEG), *([[0, 0]] if transform is TrainTransform else [])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1,999"):
        transform(8, max_pixels=1999)(*arguments)


def of_scans(count, behind=b""):
    """Return a progressive JPEG that repeats its last scan."""
    data = SMALL["jpeg_progressive"]
    last = data.rindex(b"\xff\xda")
    count -= data.count(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:] + behind


def test_a_jpeg_of_many_scans_is_refused():
    few, many = of_scans(file_checks.MOST_SCANS), of_scans(file_checks.MOST_SCANS + 1)
    assert file_checks.why_too_costly(few) is None
    assert file_checks.why_too_costly(many) == "a JPEG of more than 50 scans"
    # A video after the image does not count as scans.
    assert file_checks.why_too_costly(of_scans(10, behind=b"\xff\xda\0\x02" * 99)) is None
    for size in range(0, len(few), 7):
        file_checks.why_too_costly(few[:size])
    assert file_checks.why_too_costly(FILES["PNG"]) is None
    found = find_bad_images(ImageTable.from_encoded([few, many], [0, 1]))
    assert [(row, reason) for row, _, reason in found] == [(1, "a JPEG of more than 50 scans")]


@pytest.mark.parametrize(
    ("filling", "reason"),
    [
        (b"\xff\xfe\0\2" * 10_001, "a JPEG of more than 10,000 segments"),
        (b"\xff" * 2**21, "a JPEG with more than 1 MiB between its segments"),
        (b"\xff\xd0" * 2**20, "a JPEG with more than 1 MiB between its segments"),
    ],
    ids=["comments", "fill bytes", "restarts"],
)
def test_a_jpeg_of_many_segments_is_refused_before_pillow_opens_it(filling, reason, monkeypatch):
    jpeg = JPEG[:2] + filling + JPEG[2:]
    monkeypatch.setattr(PIL.Image, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(ValueError, match=reason):
        checked_picture(jpeg)
    assert file_checks.why_too_costly(jpeg) == reason
    half = len(filling) // 8 * 4
    assert file_checks.why_too_costly(JPEG[:2] + filling[:half] + JPEG[2:]) is None


def deflated(megabytes, head=b""):
    """Return a zlib stream of zeros after these bytes."""
    stream = zlib.compressobj(9)
    parts = [stream.compress(head), *(stream.compress(bytes(2**20)) for _ in range(megabytes))]
    return b"".join([*parts, stream.flush()])


ROWS = bytes(8 * 25)
ZEROS = deflated(64)
COSTLY = {
    "pixels": (png(8, 8, 8, 2, ZEROS, stored=True), "with more data than its pixels have"),
    "pixels in parts": (
        png(8, 8, 8, 2, b"", *((b"IDAT", ZEROS[n : n + 99]) for n in range(0, len(ZEROS), 99))),
        "with more data than its pixels have",
    ),
    "parts": (png(8, 8, 8, 2, ROWS, *[(b"tESt", b"")] * 200_000), "of more than .* parts"),
    "texts": (
        png(8, 8, 8, 2, ROWS, *[(b"zTXt", b"a\0\0" + deflated(2))] * 9),
        "with more than 16 MB of text",
    ),
    "unicode": (
        png(8, 8, 8, 2, ROWS, (b"iTXt", b"a\0\1\0en\0b\0" + ZEROS)),
        "with more than 16 MB of text",
    ),
    "profile": (
        png(8, 8, 8, 2, ROWS, (b"iCCP", b"a\0\0" + ZEROS)),
        "with more than 16 MB of text",
    ),
    "GIF": (SMALL["gif"][:-1] + b"!\xfe\0" * 50_000 + b";", "a GIF of too many small blocks"),
    "GIF of other bytes": (SMALL["gif"][:-1] + b"\1" * 50_000 + b";", "a GIF of too many"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_a_file_with_few_pixels_takes_little_time(name, tmp_path):
    encoded, reason = COSTLY[name]
    start = time.process_time()
    with pytest.raises(ValueError, match=reason):
        checked_picture(encoded)
    with pytest.raises(ValueError, match=reason):
        thumbnail(io.BytesIO(encoded))
    table = ImageTable.from_encoded([encoded], [0])
    with pytest.raises(ValueError, match=reason):
        BatchSource(table, RandomSampler(1, 1), TrainTransform(8))[0]
    ((_, _, found),) = find_bad_images(table)
    assert re.search(reason, found)
    with pytest.raises(tf.errors.OpError, match=reason):
        list(evaluation_batches(table, EvaluationTransform(8)))
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_large_pictures_and_texts_are_not_costly():
    for bits, color, numbers in [(16, 6, 8), (8, 2, 3), (1, 0, 0.125), (8, 3, 1)]:
        rows = bytes(50 * (1 + int(np.ceil(40 * numbers))))
        texts = [
            (b"PLTE", bytes(3)),
            (b"zTXt", b"a\0\0" + deflated(3)),
            (b"iTXt", b"a\0\0\0\0\0" + ZEROS),
        ]
        for chunks in ([], texts):
            assert file_checks.why_too_costly(png(40, 50, bits, color, rows, *chunks)) is None
    for name, encoded in SMALL.items():
        assert file_checks.why_too_costly(encoded) is None, name
        if not name.startswith("gif"):
            assert file_checks.readable(encoded) == encoded
        for size in range(0, len(encoded), 9):
            file_checks.why_too_costly(encoded[:size])


@pytest.mark.slow
def test_only_the_first_image_of_a_gif_is_decoded():
    frames = [smooth(300, 300, seed=number) for number in range(20)]
    encoded = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    still = file_checks.readable(encoded)
    assert len(still) < len(encoded) / 9
    table = ImageTable.from_encoded([encoded], [0])
    (images,) = evaluation_batches(table, EvaluationTransform(300))
    np.testing.assert_array_equal(images[0], decode_image(still))
    for size in (10, 40):
        encoded = animated("GIF", size, size)
        np.testing.assert_array_equal(
            decode_image(file_checks.readable(encoded)), decode_image(encoded)
        )


@pytest.mark.parametrize("name", ["bmp_palette", "bmp"])
def test_header_field_of_any_size_gives_a_readable_reason(name, tmp_path):
    """TensorFlow's message contained bytes of the file that Python could not decode."""
    paths = []
    for place in range(10, 50, 4):
        for value in (2**31 - 1, 2**31, 2**32 - 1):
            path = tmp_path / f"{place}-{value}.bmp"
            path.write_bytes(put(SMALL[name], (place, value.to_bytes(4, "little"))))
            paths.append(str(path))
    found = find_bad_images(ImageTable.from_paths(paths, [0] * len(paths)))
    assert {name for _, name, _ in found} >= {path for path in paths if "/10-" in path}
    assert all(reason.isprintable() and "\\x" not in reason for _, _, reason in found)


KINDS = {
    "good.jpg": (JPEG, None),
    "empty.jpg": (b"", "the file is empty"),
    "text.jpg": (b"<html>404</html>", "not a JPEG, PNG, WebP, BMP or GIF image"),
    "phone.jpg": (b"\0\0\0\x18ftypheic\0\0", "HEIC, which the package pillow-heif reads"),
    "png_by_another.jpg": (SMALL["png"], None),
    "missing.jpg": (None, "no such file"),
    "animated.webp": (animated("WEBP", 9, 7), "an animated WebP: only still images can be read"),
    "good.webp": (SMALL["webp"], None),
    "header_only.png": (SMALL["png"][:40], "PNG"),
    # A crop above the damage is readable, so only decoding the whole image finds it.
    "noise_inside.jpg": (JPEG[:-300] + bytes(200), "a truncated JPEG"),
    # A separate operation decodes it. Its error has the reason after many lines.
    "turned_and_damaged.jpg": (TURNED[:-300] + bytes(200), "a truncated JPEG"),
}


@pytest.fixture
def table(tmp_path):
    for name, (content, _) in KINDS.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return ImageTable.from_paths([str(tmp_path / name) for name in KINDS], [0] * len(KINDS))


@pytest.mark.slow
def test_each_kind_of_bad_file_is_found_with_its_reason(table):
    found = find_bad_images(table)
    expected = [(row, reason) for row, (_, reason) in enumerate(KINDS.values()) if reason]
    assert [row for row, _, _ in found] == [row for row, _ in expected]
    for (row, path, reason), (_, expected_reason) in zip(found, expected):
        assert path == table.paths[row]
        assert expected_reason in reason
        assert not any(word in reason for word in ("Graph", "\n", "{{", "["))


def test_only_the_requested_rows_in_their_order(table):
    assert [row for row, _, _ in find_bad_images(table, rows=[2, 0, 1])] == [2, 1]
    assert find_bad_images(table, rows=[]) == []


def test_table_of_arrays_has_no_bad_images():
    arrays = np.zeros([2, 8, 8, 1], np.uint8)
    assert find_bad_images(ImageTable.from_arrays(arrays, [0, 1])) == []
