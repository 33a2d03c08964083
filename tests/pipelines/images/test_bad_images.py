import image_files
import numpy as np
import pytest
from PIL import Image

from pipelines.images.bad_images import find_bad_images
from pipelines.table import ImageTable

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def encode(file_format, **options):
    return image_files.encode(PICTURE, file_format, **options)


FILES = {
    "good.jpg": (encode("JPEG"), None),
    "truncated.jpg": (encode("JPEG")[:-300], "Invalid JPEG data"),
    "good.png": (encode("PNG"), None),
    "empty.jpg": (b"", "the file is empty"),
    "text.jpg": (b"<html>404</html>", "not a JPEG, PNG, WebP, BMP or GIF image"),
    "phone.jpg": (
        b"\0\0\0\x18ftypheic\0\0",
        "HEIC, which the package pillow-heif reads",
    ),
    "png_by_another.jpg": (encode("PNG"), None),
    "missing.jpg": (None, "no such file"),
    "animated.webp": (
        encode("WEBP", save_all=True, append_images=[PICTURE.rotate(90)]),
        "an animated WebP: only still images can be read",
    ),
    "good.webp": (encode("WEBP"), None),
    "header_only.png": (encode("PNG")[:40], "PNG"),
    # A crop above the damage is readable, so only decoding the whole image finds it.
    "noise_inside.jpg": (encode("JPEG")[:1200] + bytes(200), "Invalid JPEG data"),
}

# A separate operation decodes it. Its error has the reason after many lines.
EXIF = Image.Exif()
EXIF[0x0112] = 6
FILES["turned_and_damaged.jpg"] = (
    encode("JPEG", exif=EXIF)[:1200] + bytes(200),
    "Invalid JPEG data",
)


@pytest.fixture
def table(tmp_path):
    for name, (content, _) in FILES.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return ImageTable.from_paths([str(tmp_path / name) for name in FILES], [0] * len(FILES))


@pytest.mark.slow
def test_each_kind_of_bad_file_is_found_with_its_reason(table):
    found = find_bad_images(table)
    expected = [(row, reason) for row, (_, reason) in enumerate(FILES.values()) if reason]
    assert [row for row, _, _ in found] == [row for row, _ in expected]
    for (row, path, reason), (_, expected_reason) in zip(found, expected):
        assert path == table.paths[row]
        assert expected_reason in reason
        assert (
            "Graph" not in reason
            and "\n" not in reason
            and "{{" not in reason
            and "[" not in reason
        )


def test_only_the_requested_rows_in_their_order(table):
    assert [row for row, _, _ in find_bad_images(table, rows=[4, 0, 1])] == [4, 1]
    assert find_bad_images(table, rows=[]) == []


def test_table_of_arrays_has_no_bad_images():
    arrays = np.zeros([2, 8, 8, 1], np.uint8)
    assert find_bad_images(ImageTable.from_arrays(arrays, [0, 1])) == []
