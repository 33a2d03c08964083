"""The installed package: the wheel, the console script, and both in a user's project."""

import configparser
import os
import re
import shutil
import zipfile

import processes
import pytest
from without import ROOT, run_in, run_without

import keras_dml

OURS = ("keras_dml", "pipelines", "experiments")
# Does the same as the console script of setup.cfg, without an installation.
SCRIPT = ["-P", "-c", "import sys; from experiments.__main__ import main; sys.exit(main())"]
THEIRS = "raise SystemExit('the project\\'s own, not ours')\n"


@pytest.fixture
def project(tmp_path):
    """Make a user's project whose packages have the same names as ours."""
    for name in ("experiments", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(THEIRS)
    return tmp_path


@pytest.mark.slow
def test_the_wheel_contains_every_file_of_the_packages(tmp_path):
    # A setuptools as old as in a new Python 3.11 needs the package `wheel` to build wheels.
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    for name in OURS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    words = ["wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, source]
    processes.run_python("-m", "pip", *words, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"keras_dml-{keras_dml.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"keras_dml-{keras_dml.__version__}.dist-info/METADATA").decode()
    there = {
        path.relative_to(source).as_posix()
        for name in OURS
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    assert packed == there
    needed = re.findall(r"^Requires-Dist: (\w+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert needed == ["keras", "numpy"]


def test_the_extras_in_pages_and_messages_exist():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    paths = [ROOT / "README.md", ROOT / "BUILD.md", *(ROOT / "docs" / "pages").rglob("*.md")]
    paths += [path for name in OURS for path in (ROOT / name).rglob("*.py")]
    text = "\n".join(path.read_text() for path in paths)
    asked = re.findall(r"pip install [^\n`]*(?:\.|keras-dml)\[([\w,]+)\]", text)
    asked += re.findall(r"needing\(\"(\w+)\"", text)
    extras = {extra for words in asked for extra in words.split(",")}
    extras.remove("extra")  # as in a docstring
    assert "serve" in extras
    assert extras <= set(setup["options.extras_require"])


def test_help_lists_the_commands(project):
    done = run_in(project, [*SCRIPT, "--help"])
    assert done.returncode == 0, done.stderr
    files = {path.stem for path in (ROOT / "experiments").glob("*.py") if path.stem[0] != "_"}
    files.add("recipes")
    listed = dict(re.findall(r"^  (\w+) +(\S.*\.)$", done.stdout, re.MULTILINE))
    assert set(listed) == files
    assert listed["run"] == "train, evaluate, export, report."
    assert "`" not in "".join(listed.values())


def test_the_list_of_recipes_shows_their_scores(project):
    done = run_in(project, [*SCRIPT, "recipes", "glyphs"])
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^glyphs .*", done.stdout, re.MULTILINE)
    assert line.split()[:4] == ["glyphs", "glyphs", "multi_similarity", "0.86"]
    assert line.endswith("1 to 2 minutes") and "cub" not in done.stdout
    unknown = run_in(project, [*SCRIPT, "recipes", "glyhps"])
    assert unknown.returncode == 2 and "Did you mean glyphs" in unknown.stderr


@pytest.mark.parametrize(
    "words,said",
    [
        (["rnu"], "Did you mean run?"),
        (["--flagfile=glyphs.flags"], "got --flagfile=glyphs.flags"),
    ],
)
def test_a_user_error_is_one_line(project, words, said):
    done = run_in(project, [*SCRIPT, *words])
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line


def test_a_package_in_pythonpath_that_hides_ours_is_named_in_one_line(tmp_path):
    hidden = "pipelines"
    (tmp_path / "theirs" / hidden).mkdir(parents=True)
    (tmp_path / "theirs" / hidden / "__init__.py").write_text(THEIRS)
    path = os.pathsep.join(map(str, [tmp_path / "theirs", ROOT]))
    done = run_in(tmp_path / "project", [*SCRIPT, "recipes"], PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    place = tmp_path / "theirs"
    assert done.stderr == (
        f"error: {place / hidden} hides the package {hidden} of the commands. Remove {place} from "
        "PYTHONPATH\n"
    )


def test_a_command_without_the_extra_run_prints_one_line(tmp_path):
    words = ["-m", "experiments.run", "--flagfile=glyphs.flags"]
    done = run_without(("PIL", "tqdm"), words, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: the commands need PIL, tqdm: pip install 'keras-dml[run]'\n"


@pytest.mark.slow
def test_the_help_of_a_run_needs_only_tensorflow(tmp_path):
    done = run_without(("jax", "torch"), ["-m", "experiments.run", "--helpfull"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--loss: Loss: angular" in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([*SCRIPT, "search", "--index=none", "--query=x"], "-c index makes one"),
        (["-m", "experiments.search", "--index=none", "--query=x"], "-m experiments.index makes"),
    ],
)
@pytest.mark.slow
def test_a_message_names_the_next_command_as_this_one_was_started(words, named, tmp_path):
    done = run_in(tmp_path, words)
    assert done.returncode == 2 and named in done.stderr, done.stderr


def test_benchmarks_start_our_package(project):
    # A checkout may be importable through the parent's path only.
    find = f"import os; del os.environ['PYTHONPATH']; sys.path.insert(0, {str(ROOT)!r})"
    program = (
        f"import sys; {find}; from experiments.benchmarks.measuring import child_rows; "
        "print(list(child_rows(list, 'ab')))"
    )
    done = run_in(project, ["-P", "-c", program])
    assert (done.returncode, done.stdout) == (0, "['a', 'b']\n"), done.stderr


def test_help_ends_quietly_if_its_reader_ends():
    process = processes.start(*SCRIPT, "--help", PYTHONPATH=str(ROOT))
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 0
