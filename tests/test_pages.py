"""The README and the site: code, commands, links, names, tables, navigation, and reference."""

import importlib
import importlib.util
import pathlib
import re
import runpy
import shlex
import shutil

import pytest
from photo_search import write_photos
from processes import run_python

import keras_dml
from experiments.options.command_words import parse
from experiments.options.declared import Options

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "pages").rglob("*.md"))
LOSSES_GUIDE = ROOT / "docs" / "pages" / "guides" / "losses.md"
THEORY = ROOT / "docs" / "pages" / "guides" / "theory.md"


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


# A block of Python, and its output.
CELL = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def cells(path):
    return CELL.findall(path.read_text("utf-8"))


def documents():
    """Return the pages with Python, without pages of the same blocks and output.

    Other tests run the tutorials and the theory, and compare their output.
    """
    guides = [path for path in GUIDES if path.parent.name != "tutorials" and path != THEORY]
    found = {tuple(cells(path)): path for path in [ROOT / "README.md", *guides]}
    return [path for of_page, path in found.items() if of_page]


@pytest.fixture
def readers_folder(tmp_path, monkeypatch):
    """A folder with photographs, which a reader has before reading."""
    names = [f"kind {number // 6}/{number}.jpg" for number in range(36)]
    photos = write_photos(tmp_path / "photos", names)
    shutil.copy(photos / names[0], tmp_path / "query.jpg")
    monkeypatch.chdir(tmp_path)


def marked(path):
    # test_distribute.py runs the loop of `devices` on devices. Blocks of `keras` take one to two
    # minutes, and the tests of its classes train each of the models.
    thorough = [pytest.mark.thorough] if path.stem in ("devices", "keras") else []
    return pytest.param(path, marks=[pytest.mark.slow, *thorough], id=path.stem)


@pytest.fixture
def no_progress_bars():
    import keras

    keras.utils.disable_interactive_logging()
    yield
    keras.utils.enable_interactive_logging()


@pytest.mark.parametrize("path", [marked(path) for path in documents()])
def test_the_blocks_run_in_reading_order_and_print_their_output(
    path, readers_folder, no_progress_bars, capsys
):
    import keras

    keras.utils.set_random_seed(0)
    # Weights, and so digits, differ between machines.
    random_weights = re.search(r"\.fit\(|GradientTape|small_convnet", path.read_text("utf-8"))
    namespace = {}
    for code, shown in cells(path):
        # Two steps or epochs, because a step in float16 takes a second without a GPU.
        exec(re.sub(r"\b(num_steps|epochs)=\d\d+", r"\1=2", code), namespace)
        printed = capsys.readouterr().out
        if random_weights:
            assert _without_digits(printed) == _without_digits(shown), printed
        else:
            assert printed == shown


@pytest.mark.slow
def test_the_first_program_meets_a_damaged_photograph_with_one_line_that_names_it(readers_folder):
    damaged = pathlib.Path("photos/kind 5/30.jpg")
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(SystemExit) as ended:
        exec(cells(ROOT / "README.md")[0][0], {})
    (line,) = str(ended.value).splitlines()
    assert str(damaged) in line and line.count(".jpg") == 1, line


def test_the_first_program_has_the_size_once_and_no_number_of_steps():
    program = cells(ROOT / "README.md")[0][0]
    assert len(re.findall(r"\b64\b", program)) == 1
    assert "steps" not in program


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_training_loop_of_a_backend_lowers_the_loss(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    page = ROOT / "docs" / "pages" / "guides" / "training_loop.md"
    (program,) = blocks(page, f'python title="KERAS_BACKEND={backend}"')
    said = run_python("-c", program, KERAS_BACKEND=backend)
    shown = page.read_text("utf-8").split(program)[1].split("```")[2].removeprefix("text\n")
    assert _without_digits(said) == _without_digits(shown), said
    first, last = map(float, re.findall(r"\d+\.\d+", said))
    assert last < first


def commands():
    """Return (page, command, its words) of all blocks."""
    for path in [ROOT / "README.md", *GUIDES]:
        for block in blocks(path, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                for name, words in re.findall(
                    r"(?:-m experiments\.|keras-dml )(\w+) (--[^&']*)", line
                ):
                    yield path.stem, name, shlex.split(words, comments=True)


@pytest.mark.parametrize(
    ("page", "name", "words"),
    list(commands()),
    ids=lambda value: value if type(value) is str else None,
)
def test_the_commands_parse(page, name, words):
    module = importlib.import_module(f"experiments.{name}")
    (options,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Options) and name in value.__name__.lower()
    ]
    parse(options, [name, *words])


def test_the_photographs_page_has_one_image_size():
    """Otherwise the scores of the untrained backbone and of a run do not compare."""
    found = {}
    for page, name, words in commands():
        if page == "photographs" and "--backbone=efficientnet_lite0" in words:
            module = importlib.import_module(f"experiments.{name}")
            options = getattr(module, f"{name.capitalize()}Options")
            parsed = parse(options, [name, *words])
            found[name] = [getattr(parsed, each) for each in ("image_size", "resize", "weights")]
    assert found.keys() == {"evaluate", "index", "run"}
    assert found["evaluate"] == found["index"] == found["run"] == [224, None, "packaged"]


def test_links_point_to_files():
    for name in ("README.md", "BUILD.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            assert (ROOT / target).is_file(), f"{name}: {target}"


def test_tests_that_pages_name_exist():
    files = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    named = [
        (page.name, *each)
        for page in GUIDES
        for each in re.findall(r"`((?:[\w/]+/)?test_\w+\.py)(?: -k (\w+))?", page.read_text())
    ]
    assert len(named) > 20
    for page, file, word in named:
        [text] = [text for path, text in files.items() if f"/{path}".endswith(f"/{file}")]
        assert word in " ".join(re.findall(r"def (test_\w+)", text)), f"{page}: {file} -k {word}"


def test_names_in_the_guides_exist():
    """In a table of another library's names, `losses.CircleLoss` is ours only if it exists here."""
    text = (ROOT / "docs" / "pages" / "guides" / "migrating.md").read_text()
    ours = "\n".join(row.split(" | ")[1] for row in text.splitlines() if row.count(" | ") == 2)
    packages = "|".join([*keras_dml.__all__, "pipelines", "keras"])
    found = re.findall(rf"`({packages})\.([\w.]+)", ours)
    assert len(set(found)) > 70
    for package, name in found:
        module = package if package in ("pipelines", "keras") else f"keras_dml.{package}"
        value = importlib.import_module(module)
        for part in name.split("."):
            assert hasattr(value, part), f"{package}.{name}"
            value = getattr(value, part)


def test_each_name_of_tensorflow_similarity_has_ours_or_a_reason():
    text = (ROOT / "docs" / "pages" / "guides" / "migrating.md").read_text()
    table = text.split("| `tensorflow_similarity` | here |")[1].split("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    assert len(rows) > 50
    packages = "|".join([*keras_dml.__all__, "pipelines", "keras"])
    for _, ours, _ in rows:
        assert re.match(rf"`({packages})\.|not here, because ", ours), ours
    theirs = [name for names, *_ in rows for name in re.findall(r"`(\w*\.\w+)", names)]
    assert len(theirs) == len(set(theirs)) > 110


def test_the_removed_module_names_the_page():
    for name in ("keras_dml.similarity", "keras_dml.similarity.losses"):
        with pytest.raises(ImportError, match=r"^[^\n]*docs/pages/guides/migrating.md[^\n]*$"):
            importlib.import_module(name)


@pytest.mark.slow
def test_the_import_is_fast():
    program = (
        "import time; started = time.process_time(); import keras, sys, tensorflow\n"
        "before = set(sys.modules); began = time.process_time(); import keras_dml\n"
        "print((time.process_time() - began) / (began - started))\n"
        "print(*(set(sys.modules) - before))"
    )
    share, modules = run_python("-c", program).splitlines()
    heavy = {"scann", "tensorflow_datasets", "matplotlib", "PIL", "pipelines", "experiments"}
    assert not heavy & set(modules.split())
    assert "keras_dml.retrieval" not in modules.split()
    # The import takes 0.3 s, and Keras with TensorFlow 4 s. The limit is a share of that, because
    # seconds depend on the machine and on tests that run at the same time.
    assert float(share) < 0.075


def test_the_table_of_losses_matches_the_source():
    from keras_dml.losses.__main__ import with_table

    guide = LOSSES_GUIDE.read_text()
    assert with_table(guide) == guide, (
        "refresh it with  python -m keras_dml.losses docs/pages/guides/losses.md"
    )


@pytest.mark.slow
def test_every_cell_of_the_theory_prints_its_output(capsys):
    assert len(cells(THEORY)) == THEORY.read_text("utf-8").count("```python") == 6
    names = {}
    for code, expected in cells(THEORY):
        exec(code, names)
        assert capsys.readouterr().out == expected


TUTORIALS = [page for page in GUIDES if page.parent.name == "tutorials"]
NUMBER = re.compile(r"-?\d+(\.\d*)?")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.any_backend
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_code_of_a_tutorial_prints_the_output(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text("utf-8"), {}
    for kind, block in re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(block, names)
            continue
        printed = capsys.readouterr().out
        assert _without_digits(printed) == _without_digits(block), printed


def _without_digits(text):
    return " ".join(NUMBER.sub("#", text).split())


def test_the_reference_has_every_public_module():
    listed = {*runpy.run_path(str(ROOT / "docs" / "build.py"))["MODULES"], "keras_dml.losses"}
    assert listed >= {f"keras_dml.{name}" for name in keras_dml.__all__}
