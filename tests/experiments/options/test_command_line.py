"""Exit codes and messages: a user's mistake differs from an internal error."""

import errno
import os
import re

import pytest

from experiments import search
from experiments.options import RunError, UsageError, command_line, run_command
from experiments.recipes import RecipeError
from keras_dml._common.errors import ArgumentTypeError


def ended(error, capsys, *words):
    """Return the exit code and stderr of a command that raises `error`."""

    def main(argv):
        raise error

    code = run_command(main, ["command", *words])
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(command_line.tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        ArgumentTypeError("margin must be above 0,\nbut got -1."),
        UsageError("margin must be above 0, but got -1."),
        RecipeError("margin must be above 0, but got -1."),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_a_refusal_is_one_line(error, capsys, tmp_path):
    expected = "error: margin must be above 0, but got -1.\n"
    assert ended(error, capsys) == (2, expected)
    assert not list(tmp_path.iterdir())


def test_an_unreadable_file_is_a_mistake_but_a_full_disk_is_not(capsys):
    code, said = ended(FileNotFoundError(errno.ENOENT, "No such file", "a.npz"), capsys)
    assert (code, said) == (2, "error: [Errno 2] No such file: 'a.npz'\n")
    assert ended(OSError(errno.ENOSPC, "No space left", "a.npz"), capsys) == (
        1,
        "stopped: [Errno 28] No space left: 'a.npz'\n",
    )
    assert ended(RunError("out of time"), capsys) == (1, "stopped: out of time\n")


def test_an_interrupt_prints_only_its_own_message(capsys):
    assert ended(KeyboardInterrupt(), capsys) == (130, "interrupted\n")
    known = KeyboardInterrupt("the same command begins anew")
    assert ended(known, capsys) == (130, "interrupted: the same command begins anew\n")


class ResourceExhaustedError(Exception):
    """Stand-in for TensorFlow's error, which `run_command` identifies by the class name."""


def test_a_full_disk_differs_from_full_memory(capsys):
    code, said = ended(ResourceExhaustedError("/a/b; No space left on device"), capsys)
    assert (code, said) == (1, "stopped: /a/b; No space left on device\n")
    code, said = ended(ResourceExhaustedError("OOM when allocating"), capsys)
    assert code == 2 and "filters, embedding_size" in said


@pytest.mark.parametrize(
    "error",
    [
        ValueError("too many values to unpack (expected 2)"),
        AssertionError(),
        OSError("without a path"),
    ],
)
def test_a_bug_is_one_line_with_the_path_of_its_traceback(error, capsys, tmp_path):
    code, said = ended(error, capsys)
    assert code == 1 and said.count("\n") == 1
    what = rf"internal error: {type(error).__name__}\b.*"
    named = re.fullmatch(rf"{what}; the traceback is in (.*) \(--debug prints it\)\n", said)
    (file,) = tmp_path.iterdir()
    assert named[1] == str(file)
    assert "in main" in file.read_text() and type(error).__name__ in file.read_text()


@pytest.mark.parametrize("word", ["-debug", "--debug=true"])
def test_debug_prints_the_traceback(word, capsys, tmp_path):
    code, said = ended(TypeError("has no len()"), capsys, "--epoch", word)
    assert code == 1 and not list(tmp_path.iterdir())
    assert "in main" in said
    assert said.endswith("internal error: TypeError: has no len()\n")
    code, said = ended(TypeError("has no len()"), capsys, word, "--nodebug")
    assert said.count("\n") == 1


def test_a_message_with_undecodable_bytes_is_printed(capsys):
    assert ended(UsageError("no image: a\udcff.png"), capsys)[0] == 2


def test_a_backend_that_is_not_installed_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_command(lambda argv: None, ["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Keras needs torch: pip install 'keras-dml[torch]'")


def test_tensorflow_is_quiet_before_a_command_can_import_it(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    seen = []
    assert run_command(lambda argv: seen.append(os.environ["TF_CPP_MIN_LOG_LEVEL"]), ["x"]) == 0
    assert seen == ["3"]
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # the user's setting has precedence
    run_command(lambda argv: seen.append(os.environ["TF_CPP_MIN_LOG_LEVEL"]), ["x"])
    assert seen == ["3", "0"]


def test_a_server_disables_onednn_before_tensorflow_is_imported(monkeypatch):
    # Set and delete the variable, so that monkeypatch restores it after the test.
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")

    def imported(extra, feature):
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
        raise UsageError("far enough")

    monkeypatch.setattr(search, "needing", imported)
    with pytest.raises(UsageError, match="far enough"):
        search.main(["search", "--index=here", "--serve"])
