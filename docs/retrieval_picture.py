"""Draw the README's picture: queries of a run with their nearest photographs.

    python docs/retrieval_picture.py runs/RUN docs/pages/pictures/retrieval.png

RUN contains `test_embeddings.npz`, whose `paths` lead to the files of the test photographs.
"""

import sys

import numpy as np
from PIL import Image, ImageDraw, ImageOps

SIDE, GAP, ROWS, NEIGHBORS = 96, 8, 3, 5
MATCH, OTHER = "#1b7f4b", "#c62828"


def main(run: str, output: str) -> None:
    """Draw three queries of three classes, chosen by a seed."""
    saved = np.load(f"{run}/test_embeddings.npz")
    embeddings, labels, paths = saved["embeddings"], saved["labels"], saved["paths"]
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarities = embeddings @ embeddings.T
    np.fill_diagonal(similarities, -np.inf)
    generator = np.random.default_rng(0)
    classes = generator.choice(np.unique(labels), ROWS, replace=False)
    width = (NEIGHBORS + 1) * (SIDE + GAP) + 3 * GAP
    picture = Image.new("RGB", (width, ROWS * (SIDE + GAP) + GAP), "white")
    draw = ImageDraw.Draw(picture)
    for place, label in enumerate(classes):
        query = generator.choice(np.flatnonzero(labels == label))
        top = GAP + place * (SIDE + GAP)
        picture.paste(thumbnail(paths[query]), (GAP, top))
        for rank, row in enumerate(np.argsort(-similarities[query])[:NEIGHBORS]):
            left = SIDE + 4 * GAP + rank * (SIDE + GAP)
            picture.paste(thumbnail(paths[row]), (left, top))
            match = labels[row] == label
            box = (left - 3, top - 3, left + SIDE + 2, top + SIDE + 2)
            draw.rectangle(box, outline=MATCH if match else OTHER, width=3)
            if not match:  # readable without color
                draw.line((left, top, left + 24, top + 24), fill=OTHER, width=4)
                draw.line((left + 24, top, left, top + 24), fill=OTHER, width=4)
    picture.quantize(192).save(output, optimize=True)


def thumbnail(path: str) -> Image.Image:
    """Return the central square of a photograph."""
    return ImageOps.fit(ImageOps.exif_transpose(Image.open(path)).convert("RGB"), (SIDE, SIDE))


if __name__ == "__main__":
    main(*sys.argv[1:])
