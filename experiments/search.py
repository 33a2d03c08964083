"""`python -m experiments.search --index=INDEX --query=IMAGE`: the images that look most alike."""

import os
import pathlib
import sys

from absl import flags

from experiments.options.command_line import quiet_tensorflow, run_command, usage_errors
from experiments.options.flags import absolute, parse_all, wants_help

FLAGS = flags.FlagValues()
flags.DEFINE_string("index", None, "What experiments.index wrote.", flag_values=FLAGS)
flags.DEFINE_multi_string("query", [], "An image.", flag_values=FLAGS)
flags.DEFINE_integer("k", None, "Neighbours.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_string("output", "neighbours.html", "The page.", flag_values=FLAGS)
flags.DEFINE_boolean("serve", False, "A local web page.", flag_values=FLAGS)
flags.DEFINE_string("host", "127.0.0.1", "Who may come.", flag_values=FLAGS)
flags.DEFINE_integer("port", 8000, "Of the page.", 0, 65535, flag_values=FLAGS)
flags.DEFINE_string("saved_model", None, "Where the model is now.", flag_values=FLAGS)
flags.DEFINE_string("images", None, "Where the images are now.", flag_values=FLAGS)

DEFAULT_K = 10
_OF_A_QUERY = ("k", "output")
_OF_THE_SERVER = ("host", "port")
HELP = f"""Find the images of an index that look most like yours.

  python -m experiments.search --index=INDEX --query=photo.jpg [--query=other.png]

prints the neighbours and writes them with their pictures to one HTML file, without a network.

  --k={DEFAULT_K}                     how many
  --output=neighbours.html   the page

  python -m experiments.search --index=INDEX --serve

serves a page onto which you drop an image. Programs may ask it, too, and get JSON:
  curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'

  --host=127.0.0.1           this computer only; 0.0.0.0: whoever reaches it may search and see the
                             images, there is no password
  --port=8000                0: any free one

INDEX is what python -m experiments.index wrote. If its model or images have been moved since:

  --saved_model=  --images=  where they are now
"""


def main(argv):
    """Load; then serve, or search, print and draw."""
    if wants_help(argv):
        print(HELP)
        return
    with usage_errors():
        _parse(argv)
        serve = _import_serve() if FLAGS.serve else None
    quiet_tensorflow()
    from experiments.photos.visual_search import VisualSearch

    with usage_errors():
        search = VisualSearch(_path(FLAGS.index), _path(FLAGS.saved_model), _path(FLAGS.images))
        if not search.images.is_dir():
            raise ValueError(
                f"the folder of the index's images is gone: {search.images}. Give --images=FOLDER, "
                "where it is now"
            )
        if serve:
            server = serve.open_server(search, FLAGS.host, FLAGS.port)
        else:
            answers, page = _answer(search)
    if serve:
        serve.run(server, FLAGS.host)
    else:
        _show(search.metric, answers, page)


def _parse(argv):
    parse_all(FLAGS, argv)
    if not FLAGS.index:
        raise ValueError("give --index=FOLDER, what python -m experiments.index wrote")
    if bool(FLAGS.query) == FLAGS.serve:
        raise ValueError("give either --query=IMAGE (once or more) or --serve")
    _refuse(_OF_A_QUERY if FLAGS.serve else _OF_THE_SERVER)
    page = _path(FLAGS.output)
    if FLAGS.query and not (page and page.parent.is_dir() and not page.is_dir()):
        raise ValueError(
            "output must be the name of a file, in a folder that exists. "
            f"Received: output={FLAGS.output}"
        )


def _refuse(names):
    for name in names:
        if FLAGS[name].present:
            mode = "--query" if FLAGS.serve else "--serve"
            raise ValueError(f"leave out --{name}, which is for {mode}")


def _path(text):
    return text and absolute(text)


def _import_serve():
    try:
        from experiments.photos import serve
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--serve needs {error.name}, which is not installed: pip install 'keras-dml[serve]'"
        ) from error
    return serve


def _answer(search):
    """The neighbours of each query, and the page that shows them."""
    from experiments.photos.search_page import write_neighbours

    k = FLAGS.k or min(DEFAULT_K, search.num_items)
    if k > search.num_items:
        raise ValueError(
            f"k must be at most the number of images, {search.num_items}. Received: k={k}"
        )
    answers = []
    for name in map(os.path.expanduser, FLAGS.query):
        try:
            found = search.search(pathlib.Path(name).read_bytes(), k)
        except OSError as error:
            raise ValueError(f"query {name} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ValueError(f"query {name} is no image that can be searched: {error}") from error
        answers.append((name, found))
    page = _path(FLAGS.output)
    write_neighbours(page, search, answers)
    return answers, page


def _show(metric, answers, page):
    from experiments.photos.search_page import score_name

    lines = [f"rank  {score_name(metric)}"]
    for name, found in answers:
        lines.append(name)
        for rank, one in enumerate(found, start=1):
            lines.append(f"{rank:>4}  {one.score:.4f}  {one.path}")
    # A name may hold what the terminal's encoding cannot say, bytes that are no UTF-8 for instance.
    encoding = sys.stdout.encoding or "utf-8"
    text = "\n".join([*lines, f"pictures: {page}"])
    print(text.encode(encoding, "replace").decode(encoding))


if __name__ == "__main__":
    sys.exit(run_command(main))
