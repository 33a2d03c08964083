"""`python -m experiments.index --images=FOLDER --output=INDEX`: make a folder searchable."""

import dataclasses
import shutil
import sys
import time

from absl import flags

from experiments.options.command_line import quiet_tensorflow, run_command, usage_errors
from experiments.options.flags import absolute, parse_all, wants_help
from experiments.photos.index_folder import (
    EMBEDDINGS,
    INDEX,
    SETTINGS,
    SKIPPED,
    open_folder,
    write_settings,
)
from experiments.report.pictures import MOST_PIXELS
from keras_dml.atomic import replacing

# Up to so many items an exact search takes some ten milliseconds and has nothing to tune.
EXACT_ITEMS = 100_000
# Of the true nearest, the share that a tree must find unless told otherwise.
TARGET_RECALL = 0.95

FLAGS = flags.FlagValues()
flags.DEFINE_string("saved_model", None, "What embeds the images.", flag_values=FLAGS)
flags.DEFINE_string("images", None, "Their folder.", flag_values=FLAGS)
flags.DEFINE_string("output", None, "Where to.", flag_values=FLAGS)
flags.DEFINE_integer("batch_size", 64, "Images at once.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_enum("metric", "cosine", ["cosine", "l2"], "What is near.", flag_values=FLAGS)
flags.DEFINE_boolean("approximate", None, "With tree and hashing.", flag_values=FLAGS)
flags.DEFINE_float("target_recall", None, "Share of neighbours found.", flag_values=FLAGS)
flags.DEFINE_integer("num_leaves", None, "Leaves of the tree.", flag_values=FLAGS)
flags.DEFINE_integer("leaves_to_search", None, "Leaves for a query.", flag_values=FLAGS)
flags.DEFINE_integer("reorder", None, "Items compared exactly.", flag_values=FLAGS)

HELP = f"""Embed all images of a folder and build an index, to find images by an image.

  python -m experiments.index --saved_model=RUN/saved_model --images=FOLDER --output=INDEX
  python -m experiments.search --index=INDEX --query=photo.jpg      or --serve

All images in FOLDER and below are taken. Those that cannot be read, or have more than
{MOST_PIXELS // 10**6} million pixels, are skipped and listed in INDEX/{SKIPPED}. A killed command
goes on where it stopped when it is given again. Given again later, it embeds what is new or has
changed in FOLDER and drops what is gone.

  --batch_size=64       images embedded at once
  --metric=cosine       or l2

Up to {EXACT_ITEMS:,} images a query is compared with all of them; beyond that, ScaNN's tree and
asymmetric hashing find almost the same neighbours in less time. To choose yourself:

  --[no]approximate     with tree and hashing (from 20,000 images on), or exactly, whatever the
                        number; one of these four means the former:
  --target_recall={TARGET_RECALL}  the share of the true nearest to find: how many leaves that
                        takes is tried on a sample
  --num_leaves=         leaves of the tree
  --leaves_to_search=   how many of them a query looks into
  --reorder=            how many of the nearest by hashing are compared again exactly

INDEX holds {INDEX}/, {SETTINGS} (which model, which images), {SKIPPED}, and {EMBEDDINGS}
(`embeddings` float32 [n, d], `paths` [n]) for numpy.load. Images and model stay where they are.
"""
_REQUIRED = ("saved_model", "images", "output")
_OF_THE_TREE = ("target_recall", "num_leaves", "leaves_to_search", "reorder")


def main(argv):
    """List, embed, build, save."""
    if wants_help(argv):
        print(HELP)
        return
    start = time.monotonic()
    with usage_errors():
        saved_model, images, output, asked = _parse(argv)
    quiet_tensorflow()
    from experiments.embedding.saved_model import ImageEmbedder, fingerprint
    from experiments.photos.folder_embeddings import FolderEmbeddings, digest
    from experiments.photos.image_folder import list_images
    from keras_dml.retrieval import build_index, scann_loads

    with usage_errors():
        files = list_images(images)
        tree = None if asked is None else _tree(asked)
        settings = open_folder(output, saved_model, fingerprint(saved_model), images)
        folder = FolderEmbeddings(output, images, settings["fingerprint"])
        embedded, bad, new = folder.update(
            files, lambda: ImageEmbedder(saved_model), FLAGS.batch_size
        )
        _write_skipped(output / SKIPPED, bad)
        if tree is None and FLAGS.approximate is None and len(embedded.files) > EXACT_ITEMS:
            tree = _tree({})
        if tree is not None and not scann_loads():
            tree = None  # so that the same command builds it once ScaNN is installed
        built = {"images": digest(embedded.files), "metric": FLAGS.metric}
        built["tree"] = tree and dataclasses.asdict(tree)
        if settings["built"] != built or not _loads(output / INDEX):
            paths = [file.path for file in embedded.files]
            index = build_index(embedded.embeddings, FLAGS.metric, paths, tree)
            _save(index, output / INDEX)
            settings |= {"built": built, "search": _how(index)}
            write_settings(output, settings)
    count, seconds = len(embedded.files), time.monotonic() - start
    print(f"{output}: {count:,} images, {new:,} of them new, {seconds:.1f} s")
    print(settings["search"])
    if bad:
        print(f"skipped {len(bad):,} files that cannot be embedded: {output / SKIPPED}")
    print(f"search it: python -m experiments.search --index={output} --query=IMAGE (or --serve)")


def _parse(argv):
    """The three folders, and what is asked of the tree: None for no tree, as far as is known."""
    parse_all(FLAGS, argv)
    missing = [f"--{name}=FOLDER" for name in _REQUIRED if not FLAGS[name].value]
    if missing:
        raise ValueError(f"give {', '.join(missing)}")
    tree = {name: FLAGS[name].value for name in _OF_THE_TREE if FLAGS[name].value is not None}
    if tree and FLAGS.approximate is False:
        raise ValueError(f"--noapproximate has no tree: leave out --{next(iter(tree))}")
    return *(
        absolute(FLAGS[name].value) for name in _REQUIRED
    ), tree if tree or FLAGS.approximate else None


def _tree(given):
    from keras_dml.retrieval import TreeAH

    if "leaves_to_search" not in given:
        given = {"target_recall": TARGET_RECALL} | given
    return TreeAH(**given)


def _loads(path):
    """Whether a search could read the index: it may be damaged, or gone."""
    from keras_dml.retrieval import load_index

    try:
        load_index(path)
    except ValueError:
        return False
    return True


def _save(index, path):
    try:
        index.save(path)
    except ValueError:  # what is there is so damaged that it is not known as an index any more
        shutil.rmtree(path)
        index.save(path)


def _how(index):
    tree = getattr(index, "tree", None)  # the index without ScaNN has none
    if tree is None:
        return "exact search"
    return (
        f"a search looks into {tree.leaves_to_search:,} of {tree.num_leaves:,} leaves and finds "
        f"{100 * index.measured_recall:.1f} % of the 10 nearest"
    )


def _write_skipped(path, bad):
    """One line a file, `path<tab>reason`; no file where nothing was skipped."""
    if not bad:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        lines = [f"{name}\t{reason}\n" for name, reason in sorted(bad.items())]
        # Also the names that are no UTF-8, byte for byte.
        temporary.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


if __name__ == "__main__":
    sys.exit(run_command(main))
