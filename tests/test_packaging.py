"""The installed package: the wheel, the console script, and both in a user's project."""

import configparser
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from without import ROOT, run_in, run_without

import keras_dml

TOP_LEVEL = {
    "setup.cfg", "pyproject.toml", "keras_dml", "pipelines", "experiments", "tests", "docs",
    "README.md", "BUILD.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE",
}  # fmt: skip
OURS = ("keras_dml", "pipelines", "experiments")
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
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


def test_the_wheel_contains_every_file_of_the_packages(tmp_path):
    # A setuptools as old as in a new Python 3.11 needs the package `wheel` to build wheels.
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    for name in OURS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    words = ["wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, source]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=300)
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
    assert {pathlib.PurePath(name).suffix for name in there} == {
        ".py", ".typed", ".html", ".md", ".css", ".flags", ".csv"
    }  # fmt: skip
    needed = re.findall(r"^Requires-Dist: (\S+?)[<>=~].*(?<!extra)$", metadata, re.MULTILINE)
    unconditional = [line for line in metadata.splitlines()
                     if line.startswith("Requires-Dist:") and "extra ==" not in line]  # fmt: skip
    assert needed and [re.split(r"[ <>=~]+", line)[1] for line in unconditional] == [
        "keras", "numpy"
    ]  # fmt: skip


def test_the_top_level_contains_only_known_files():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not listed:
        pytest.skip("no checkout")
    assert {line.split("/")[0] for line in listed if not line.startswith(".")} == TOP_LEVEL


def test_the_version_is_defined_once():
    assert SETUP["metadata"]["version"] == "attr: keras_dml.__version__"
    # A literal, which the build reads without importing Keras.
    text = (ROOT / "keras_dml" / "__init__.py").read_text()
    assert f'\n__version__ = "{keras_dml.__version__}"\n' in text
    assert f"\n## {keras_dml.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_extras_in_the_readme_exist():
    extras = set(SETUP["options.extras_require"])
    texts = [(ROOT / name).read_text() for name in ("README.md", "BUILD.md")]
    texts += [path.read_text() for path in (ROOT / "docs" / "pages").rglob("*.md")]
    code = [path.read_text() for name in OURS for path in (ROOT / name).rglob("*.py")]
    asked = re.findall(r"pip install [^\n`]*(?:\.|keras-dml)\[([\w,]+)\]", "\n".join(texts + code))
    asked = [words for words in asked if words != "extra"]  # as in a docstring
    asked += re.findall(r"needing\(\"(\w+)\"", "\n".join(code))
    assert {"run", "test", "serve", "search", "tensorflow", "benchmark"} <= set(asked)
    assert {extra for words in asked for extra in words.split(",")} <= extras


def test_help_lists_the_commands(project):
    done = run_in(project, [*SCRIPT, "--help"])
    assert done.returncode == 0, done.stderr
    files = {path.stem for path in (ROOT / "experiments").glob("*.py") if path.stem[0] != "_"}
    files.add("recipes")
    listed = dict(re.findall(r"^  (\w+) +(\S.*\.)$", done.stdout, re.MULTILINE))
    assert set(listed) == files
    assert listed["run"] == "train, evaluate, export, report."
    assert "`" not in "".join(listed.values())


def test_without_a_command_the_overview_is_printed(project):
    done = run_in(project, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "keras-dml run --flagfile=glyphs.flags" in done.stdout and "  recipes " in done.stdout


def test_the_list_of_recipes_shows_their_scores(project):
    done = run_in(project, [*SCRIPT, "recipes", "glyphs"])
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^glyphs .*", done.stdout, re.MULTILINE)
    assert line.split()[:4] == ["glyphs", "glyphs", "multi_similarity", "0.85"]
    assert line.endswith("1 to 2 minutes") and "cub" not in done.stdout
    unknown = run_in(project, [*SCRIPT, "recipes", "glyhps"])
    assert unknown.returncode == 2 and "Did you mean glyphs" in unknown.stderr


@pytest.mark.parametrize(
    "words,said",
    [
        (["rnu"], "Did you mean run?"),
        (["--flagfile=glyphs.flags"], "got --flagfile=glyphs.flags"),
        (["run", "--no_such_flag=1"], "no_such_flag"),
    ],
)
def test_a_user_error_is_one_line(project, words, said):
    done = run_in(project, [*SCRIPT, *words])
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize("words", [[*SCRIPT, "run"], ["-m", "experiments.run"]])
def test_a_command_without_the_extra_run_prints_one_line(tmp_path, words):
    done = run_without(("PIL", "tqdm"), [*words, "--flagfile=glyphs.flags"], tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: the commands need PIL, tqdm: pip install 'keras-dml[run]'\n"


DIGITS = ["--dataset=digits", "--weights=none", "--backbone=small_convnet", "--image_size=8"]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_dataset_that_lacks_its_package_prints_one_line(tmp_path):
    # Importable when the command starts, but it fails to load.
    words = ["-c", "import sys; sys.modules['sklearn.datasets'] = None; sys.argv = sys.argv[1:]; "
             "from experiments import run; from experiments.options.command_line import "
             "run_command; sys.exit(run_command(run.main))", "run", *DIGITS]  # fmt: skip
    done = run_in(tmp_path / "project", words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: the dataset digits needs sklearn")
    assert done.stderr.endswith(": pip install 'keras-dml[run]'\n")


@pytest.mark.slow
def test_keras_dml_works_in_a_project_with_packages_of_the_same_names(project):
    program = (
        "import keras_dml, numpy; "
        "print(keras_dml.metrics.recall_at_k(numpy.eye(4), [0, 0, 1, 1], [1, 3])); "
        "print(keras_dml.export.export_saved_model.__name__, keras_dml.addons.__name__)"
    )
    done = run_in(project, ["-c", program], KERAS_BACKEND="jax")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "export_saved_model keras_dml.addons"


@pytest.mark.parametrize("on_path", [True, False])
def test_benchmarks_start_our_package(project, on_path):
    # A checkout may be importable through the parent's path only.
    find = (
        ""
        if on_path
        else f"import os; del os.environ['PYTHONPATH']; sys.path.insert(0, {str(ROOT)!r}); "
    )
    program = (
        f"import sys; {find}from experiments.benchmarks.measuring import child_rows; "
        "print(list(child_rows(list, 'ab')))"
    )
    done = run_in(project, ["-P", "-c", program])
    assert (done.returncode, done.stdout) == (0, "['a', 'b']\n"), done.stderr


def test_the_gate_installs_versions_that_setup_cfg_allows():
    """Otherwise the gate cannot resolve them, or another package's release decides its versions."""
    pinned = {}
    for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            pinned[canonicalize_name(name)] = version
    extras = SETUP["options.extras_require"]
    installed = [SETUP["options"]["install_requires"]]
    names = ("tensorflow", "search", "commands", "test", "docs", "torch", "jax", "serve", "hub")
    installed += [extras[name] for name in names]
    asked = [Requirement(line) for text in installed for line in text.split("\n") if line.strip()]
    others = [requirement for requirement in asked if requirement.name != "keras-dml"]
    assert len(others) > 20
    for requirement in others:
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"
    assert "constraints.txt" in (ROOT / ".ci" / "run").read_text()


def test_help_ends_quietly_if_its_reader_ends():
    process = subprocess.Popen(
        [sys.executable, *SCRIPT, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0
