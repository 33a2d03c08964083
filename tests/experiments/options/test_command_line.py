"""Exit codes and messages of mistakes, internal errors, and interrupts; child processes."""

import errno
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import processes
import pytest
from tiny_run import TINY_GLYPHS
from without import run_in

from experiments import prepare_command, search, typed
from experiments.options import RunError, UsageError, command_line, run_command
from experiments.options.visible import visible
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


class ResourceExhaustedError(Exception):
    """Stand-in for TensorFlow's error, which `run_command` identifies by the class name."""


ENDS = [
    (ArgumentTypeError("k must be 1,\nbut got 2."), 2, "error: k must be 1, but got 2."),
    (UsageError("margin must be above 0."), 2, "error: margin must be above 0."),
    (RecipeError("margin must be above 0."), 2, "error: margin must be above 0."),
    (FileNotFoundError(2, "No such file", "a.npz"), 2, "error: [Errno 2] No such file: 'a.npz'"),
    (OSError(errno.ENOSPC, "No space left", "a"), 1, "stopped: [Errno 28] No space left: 'a'"),
    (ResourceExhaustedError("No space left on device"), 1, "stopped: No space left on device"),
    (RunError("out of time"), 1, "stopped: out of time"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (KeyboardInterrupt("it begins again"), 130, "interrupted: it begins again"),
    (UsageError("storage http://me:sec@ret@host"), 2, "error: storage http://…@host"),
    # Control characters and undecodable bytes in the name of a file.
    (UsageError("no image: a\u202eg\x1b]0;x\x07"), 2, r"error: no image: a\u202eg\u001b]0;x\u0007"),
    (UsageError("no image: a\udcff.png"), 2, r"error: no image: a\udcff.png"),
]


@pytest.mark.parametrize(("error", "code", "line"), ENDS)
def test_mistakes_stops_and_interrupts_are_one_line(error, code, line, capsys, tmp_path):
    assert ended(error, capsys) == (code, f"{line}\n")
    assert not list(tmp_path.iterdir())


def test_full_memory_names_the_flags_of_the_model(capsys):
    code, said = ended(ResourceExhaustedError("OOM when allocating"), capsys)
    assert code == 2 and "filters, embedding_size" in said


@pytest.mark.parametrize("error", [ValueError("too many values"), OSError("without a path")])
def test_a_bug_is_one_line_with_the_path_of_its_traceback(error, capsys, tmp_path):
    code, said = ended(error, capsys)
    assert code == 1 and said.count("\n") == 1
    what = rf"internal error: {type(error).__name__}\b.*"
    named = re.fullmatch(rf"{what}; the traceback is in (.*) \(--debug prints it\)\n", said)
    (file,) = tmp_path.iterdir()
    assert named[1] == str(file)
    assert "in main" in file.read_text() and type(error).__name__ in file.read_text()


def test_a_bug_and_a_note_have_no_password(tmp_path):
    """MLflow and urllib3 log addresses. The traceback of a bug names its message."""
    program = """
import logging
from experiments.options import run_command

def main(argv):
    logging.getLogger("urllib3").warning("retrying %s", "http://me:secret@host")
    raise ValueError("postgresql://host/name?password=secret")

raise SystemExit(run_command(main, ["command"]))
"""
    done = run_in(tmp_path, ["-c", program])
    assert done.returncode == 1
    note, bug = done.stderr.splitlines()
    assert note == "note: retrying http://…@host" and "postgresql://host/name?password=…" in bug
    (file,) = re.findall("traceback is in (.*) \\(", bug)
    assert "secret" not in pathlib.Path(file).read_text()
    pathlib.Path(file).unlink()


@pytest.mark.parametrize("word", ["-debug", "--debug=true"])
def test_debug_prints_the_traceback(word, capsys, tmp_path):
    code, said = ended(TypeError("has no len()"), capsys, "--epoch", word)
    assert code == 1 and not list(tmp_path.iterdir())
    assert "in main" in said
    assert said.endswith("internal error: TypeError: has no len()\n")
    code, said = ended(TypeError("has no len()"), capsys, word, "--nodebug")
    assert said.count("\n") == 1


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


@pytest.mark.parametrize("name", ["é ü.png", "قطة.png", "a\tb", "👩\u200d🌾.png"])
def test_names_in_any_language_are_unchanged(name):
    assert visible(name) == name


def test_a_package_that_hides_ours_is_named_in_one_line(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    done = run_in(tmp_path, ["-m", "experiments.recipes"])
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert f"{tmp_path}/pipelines hides" in done.stderr and "Run keras-dml" in done.stderr


def test_messages_name_a_command_as_the_user_typed_this_one(monkeypatch, capsys):
    text = "keras-dml index makes one: pip install 'keras-dml[run]', not /a/keras-dml index"
    monkeypatch.delenv("KERAS_DML_PREFIX", raising=False)
    assert typed(text) == text
    monkeypatch.setenv("KERAS_DML_PREFIX", ".venv/bin/python -m experiments.")
    typed_text = text.replace("keras-dml index", ".venv/bin/python -m experiments.index", 1)
    assert typed(text) == typed_text
    assert ended(UsageError(text), capsys) == (2, f"error: {typed_text}\n")
    assert run_command(search.main, ["search", "--help"]) == 0
    printed = capsys.readouterr().out
    assert ".venv/bin/python -m experiments.search --index=INDEX --serve" in printed
    assert "keras-dml search" not in printed


def test_inherited_settings_do_not_end_a_command(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("error")
        prepare_command()
        warnings.warn("from a package", stacklevel=1)
    assert [str(each.message) for each in printed] == ["from a package"]
    # Child processes inherit these.
    assert os.environ["MPLBACKEND"] == "agg" and os.environ["PYTHONWARNINGS"] == "default"
    assert "TF_USE_LEGACY_KERAS" not in os.environ


@pytest.mark.slow
def test_a_command_works_with_every_inherited_setting(tmp_path):
    settings = {
        "MPLBACKEND": "module://no_such_module",  # Jupyter's is not in the commands' environment
        "TF_USE_LEGACY_KERAS": "1",
        "PYTHONWARNINGS": "error",
        "TF_CONFIG": "{",
        "KERAS_HOME": "/dev/null/folder",
    }
    words = ["-m", "experiments.run", *TINY_GLYPHS, "--epochs=1", "--steps_per_epoch=1"]
    done = run_in(tmp_path, [*words, "--output_dir=run"], **settings)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "foo"}, "KERAS_BACKEND must be .*, but got foo. The setting is in {}."),
        ({"backend": "torch"}, "Keras needs torch: pip install .*, or set KERAS_BACKEND=jax"),
        ({"image_data_format": "channels_first"}, "must be channels_last, .*channels_first in {}"),
    ],
)
def test_settings_in_a_file_of_keras_are_checked(settings, message, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", {"jax": "here"}.get)
    file = tmp_path / "keras.json"
    file.write_text(json.dumps(settings))
    assert run_command(lambda argv: None, ["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(message.format(re.escape(str(file))), line), line


@pytest.mark.parametrize("text", ["{", "[1]", "{}"])
def test_a_file_of_keras_without_settings_is_ignored(text, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(text)
    assert run_command(lambda argv: None, ["run"]) == 0


COMMAND = """
import atexit, os, signal, sys, threading, time
from experiments.options import run_command

class InCallback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def main(words):
    atexit.register(time.sleep, 0.1)
    threading.Thread(target=time.sleep, args=[0.6]).start()
    print("began", flush=True)
    if "callback" in WORDS:
        InCallback()
    try:
        time.sleep(20)
    except KeyboardInterrupt:
        if "replaced" in WORDS:
            raise RuntimeError("active exception types: REPLACED BY KeyboardInterrupt")
        raise
    finally:
        time.sleep(0.2)  # cleans up

WORDS = sys.argv.copy()
sys.argv = sys.argv[:1]
sys.exit(run_command(main, goes_on="the same command continues"))
"""
LINE = "interrupted: the same command continues\n"


def started(*words):
    process = processes.start("-c", COMMAND, *words)
    assert process.stdout.readline() == "began\n"
    return process


@pytest.mark.slow
def test_a_second_interrupt_at_any_moment_ends_the_process_with_one_line():
    # During the command's cleanup, while Python waits for threads, and in the exit handlers.
    delays = (0.0, 0.195, 0.205, 0.55, 0.65)
    processes = [started() for _ in delays]
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGINT)
    for delay, process in zip(delays, processes):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        process.send_signal(signal.SIGINT)
    ends = [(process.communicate(timeout=20)[1], process.returncode) for process in processes]
    assert ends == [(LINE, 130)] * len(delays)


@pytest.mark.slow
def test_an_interrupt_that_python_drops_or_tensorflow_replaces():
    """Python drops an exception in a callback. C++ code raises another exception in its place."""
    processes = [started("callback"), started("replaced")]
    processes[1].send_signal(signal.SIGINT)
    for process in processes:
        assert (process.communicate(timeout=20)[1], process.returncode) == (LINE, 130)


@pytest.mark.slow
def test_a_process_that_ignores_interrupts_continues_to_ignore_them():
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c"]
    code = COMMAND.replace("time.sleep(20)", "time.sleep(0.5)")
    with subprocess.Popen([*ignoring, code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


CHILD = """
import time
from experiments.options.child_process import end_with_parent
end_with_parent()
print("began", flush=True)
time.sleep(60)
"""


PARENT = f"""
import subprocess, sys
from experiments.options.child_process import child_environment
subprocess.run([sys.executable, "-c", {CHILD!r}], env=child_environment())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_child_ends_with_its_killed_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"began\n"
        parent.kill()
        # The child writes to the same pipe, which closes when the child ends.
        parent.communicate(timeout=10)


@pytest.mark.slow
def test_python_without_docstrings_is_one_line():
    command = [sys.executable, "-OO", "-m", "experiments.search", "--index=i", "--query=q.jpg"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert re.fullmatch("error: Python must keep docstrings, .*-OO.*\n", ended.stderr)


def test_no_line_of_an_error_is_long(capsys):
    for words, text in (((), "x" * 9_000_000), (["--debug"], "é" * 9_000_000)):
        code, said = ended(UsageError(f"columns must be few, but got {text}"), capsys, *words)
        assert code == 2 and said.startswith("error: columns must be few, but got")
        assert max(map(len, said.splitlines())) <= 1000


@pytest.mark.parametrize("text", ["embedded null byte", "embedded null character in path"])
def test_a_nul_in_a_path_is_a_mistake(text, capsys):
    code, said = ended(ValueError(text), capsys)
    assert code == 2 and said == "error: the path of a file must have no NUL character\n"


PRINTS = """
import os, sys
from experiments.options import run_command

def main(argv):
    print("a class – naïve 貓 \\udcff", "x" * int(argv[1]))
    with open(os.devnull) as opened:
        assert opened.fileno() > 2

raise SystemExit(run_command(main, ["command", LENGTH]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a shell and /dev/full")
def test_output_that_cannot_be_printed_is_no_internal_error():
    def run(end, length="0", **environment):
        code = PRINTS.replace("LENGTH", repr(length))
        words = ["sh", "-c", f'exec "$0" -c "$1" {end}', sys.executable, code]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
        return subprocess.run(words, capture_output=True, text=True, env=environment)

    closed = run(">&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    everything_closed = run("<&- >&- 2>&-")
    assert everything_closed.returncode == 0
    ascii_only = run("", PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert ascii_only.stdout == "a class \\u2013 na\\xefve \\u8c93 \\udcff \n"
    unicode = run("", PYTHONIOENCODING="utf-8")
    assert unicode.stdout == "a class – naïve 貓 \\udcff \n"
    full = run(">/dev/full")
    assert full.returncode == 1 and full.stderr.startswith("stopped: [Errno 28]")
    ended_reader = run("| true; exit $?", length="1000000")
    assert ended_reader.stderr == ""
