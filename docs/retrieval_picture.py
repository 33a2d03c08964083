"""Draw the README's picture: photographs with their nearest catalog picture, before and after.

    python docs/retrieval_picture.py runs/UNTRAINED runs/TRAINED docs/pages/pictures/retrieval.png

Both runs contain `test_embeddings.npz` of the same photographs and catalog pictures, whose paths
lead to files. Prints the R@1 of both runs, and the difference with its 95 % interval over classes.
"""

import pathlib
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIDE, GAP, COLUMNS, MARGIN = 72, 8, 10, 96
MATCH, OTHER = "#1b7f4b", "#c62828"


def main(untrained: str, trained: str, output: str) -> None:
    """Draw a photograph of each class, chosen by a seed, and print the scores."""
    runs = [np.load(f"{run}/test_embeddings.npz") for run in (untrained, trained)]
    labels, paths = runs[0]["labels"], runs[0]["paths"]
    catalog_labels, catalog_paths = runs[0]["catalog_labels"], runs[0]["catalog_paths"]
    nearest = [_nearest(run["embeddings"], run["catalog_embeddings"]) for run in runs]
    print(_gain(labels, *(catalog_labels[rows[:, 0]] == labels for rows in nearest)))

    generator = np.random.default_rng(0)
    classes = np.unique(labels)
    queries = [generator.choice(np.flatnonzero(labels == label)) for label in classes]
    bands = -(-len(queries) // COLUMNS)
    height = 3 * (SIDE + GAP) + 2 * GAP
    picture = Image.new("RGB", (MARGIN + COLUMNS * (SIDE + GAP), bands * height), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(15)
    for place, query in enumerate(queries):
        band, column = divmod(place, COLUMNS)
        left, top = MARGIN + column * (SIDE + GAP), band * height + GAP
        picture.paste(thumbnail(paths[query]), (left, top))
        for line, title in enumerate(["photograph", "untrained", "trained"]):
            below = top + line * (SIDE + GAP)
            draw.text((GAP, below + SIDE // 2 - 8), title, "black", font)
            if line:
                row = nearest[line - 1][query, 0]
                picture.paste(thumbnail(catalog_paths[row]), (left, below))
                frame(draw, left, below, catalog_labels[row] == labels[query])
    picture.quantize(192).save(output, optimize=True)


def frame(draw: ImageDraw.ImageDraw, left: int, top: int, match: bool) -> None:
    """Draw a green frame around a match, or a crossed red one, which is readable without color."""
    box = (left - 3, top - 3, left + SIDE + 2, top + SIDE + 2)
    draw.rectangle(box, outline=MATCH if match else OTHER, width=3)
    if not match:
        draw.line((left, top, left + 18, top + 18), fill=OTHER, width=4)
        draw.line((left + 18, top, left, top + 18), fill=OTHER, width=4)


def thumbnail(path: str) -> Image.Image:
    """Return the central square of a photograph."""
    return ImageOps.fit(ImageOps.exif_transpose(Image.open(path)).convert("RGB"), (SIDE, SIDE))


def _nearest(queries: np.ndarray, catalog: np.ndarray) -> np.ndarray:
    """Return the rows of the catalog for each query, nearest by cosine first."""
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, catalog)]
    return np.argsort(-unit[0] @ unit[1].T, axis=1)


def _gain(labels: np.ndarray, before: np.ndarray, after: np.ndarray) -> str:
    """Return R@1 of both runs and their difference, as at the end of a run."""
    sys.path.insert(0, str(ROOT))
    from experiments.evaluation.conclusions import gain
    from experiments.evaluation.scores import RECALL

    counts = np.bincount(labels)
    both = [
        {RECALL.at_1: [np.bincount(labels, found).tolist(), counts.tolist()]}
        for found in (after, before)
    ]
    return f"photo to catalog, {gain(RECALL, *both).text}"


if __name__ == "__main__":
    main(*sys.argv[1:])
