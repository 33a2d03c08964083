"""Run commands in processes that start at once: forked from a process with all imports done.

`python -m experiments.run` takes seconds to start. `ForkedCommands` starts a process that imports
the commands' dependencies, and forks this process for each command. The fork runs the command as
`python -m` does, up to the end of its interpreter, in a new session.
"""

import contextlib
import json
import os
import pathlib
import re
import runpy
import select
import signal
import subprocess
import sys
import time

# All modules that a command imports while it runs, except the commands, which `runpy` imports.
_IMPORTED = (
    "experiments.evaluation.model_embeddings",
    "experiments.searching.folder_embeddings",
    "experiments.searching.visual_search",
    "experiments.pages.report",
    "experiments.training.fit",
    "experiments.training.outcome",
    "experiments.training.failures",
    "keras_dml.retrieval.scann_index",
    "pipelines.datasets.download",
    "tensorflow_datasets",
)
_LONGEST = 240.0
_SECONDS_BETWEEN_LOOKS = 0.01


class Ended:
    """The end of a command.

    Attributes:
        code: its exit code, or minus the number of the signal that ended it.
        output: its text on stdout and stderr.
    """

    def __init__(self, code, output):
        self.code, self.output = code, output

    @property
    def said(self):
        """The lines of its output without progress bars."""
        lines = re.split(r"[\r\n]+", self.output)
        return [line for line in lines if line.strip() and not re.search(r"%\|| \[\d\d:", line)]

    @property
    def problem(self):
        """Why a command must never end like this, even with damaged files, or None if it may."""
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}: {self.output[-2000:]}"
        for word in ("Traceback (most recent call last)", "internal error"):
            if word in self.output:
                return f"{word}: {self.output[-4000:]}"
        return None

    @property
    def refused(self):
        """The line of a refusal, or None if the command did not refuse."""
        errors = [line for line in self.said if line.startswith("error: ")]
        return errors[0] if self.code == 2 and len(errors) == 1 else None


class Command:
    """A running command."""

    def __init__(self, server, pid, output):
        self._server, self.pid, self._output = server, pid, output
        self.began = time.monotonic()

    def sleep(self, seconds):
        """Wait, at most until the command ends; return whether it still runs."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._server.code(self.pid, min(left, _SECONDS_BETWEEN_LOOKS)) is not None:
                return False
        return self._server.code(self.pid, 0) is None

    def send(self, number):
        """Send a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, longest=_LONGEST):
        """Wait for the end and return `Ended`; kill a command that hangs and raise an error."""
        if self.sleep(longest):
            os.killpg(self.pid, signal.SIGKILL)
            raise TimeoutError(f"no end after {longest} s: {self._read()[-2000:]}")
        return Ended(self._server.code(self.pid, 0), self._read())

    def _read(self):
        return pathlib.Path(self._output).read_text(errors="replace")

    def left_alive(self, patience=5.0):
        """Return the processes of its session that survive it."""
        end = time.monotonic() + patience
        while (alive := _of_session(self.pid)) and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return alive


def _of_session(session):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


class ForkedCommands:
    """A process that waits for commands, to use as a context manager.

    Args:
        folder: where the output of commands is stored, one file for each.
    """

    def __init__(self, folder):
        self._folder, self._codes, self._count = pathlib.Path(folder), {}, 0
        self._text = b""

    def __enter__(self):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.pop("PYTEST_CURRENT_TEST", None)
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)

    def start(self, module, *arguments, setup=""):
        """Start `python -m module`; the process runs the Python code in `setup` first."""
        self._count += 1
        output = self._folder / f"output-{self._count}.txt"
        words = {"module": module, "arguments": list(map(str, arguments)), "setup": setup}
        self._process.stdin.write((json.dumps({**words, "output": str(output)}) + "\n").encode())
        self._process.stdin.flush()
        while (line := self._line(_LONGEST)) and line[0] != "started":
            self._codes[line[1]] = line[2]
        return Command(self, line[1], output)

    def run(self, module, *arguments, setup=""):
        """Run a command and return `Ended`."""
        return self.start(module, *arguments, setup=setup).wait()

    def code(self, pid, timeout):
        """Return the exit code, or None while the command runs."""
        while pid not in self._codes and (line := self._line(timeout)):
            self._codes[line[1]] = line[2]
            timeout = 0
        return self._codes.get(pid)

    def _line(self, timeout):
        while b"\n" not in self._text:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                return None
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                raise RuntimeError("the process that forks is gone")
            self._text += read
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)


def _serve():
    """Fork a process for each line of stdin; report its start and its end on stdout."""
    for name in _IMPORTED:
        __import__(name)
    told = os.dup(1)
    os.dup2(2, 1)

    def tell(*words):
        os.write(told, (json.dumps(words) + "\n").encode())

    def reap(*_):
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                tell("ended", found[0], os.waitstatus_to_exitcode(found[1]))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        # Report the start before the command can end: the signal handler waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if not pid:
            os.close(told)
            return json.loads(line)
        tell("started", pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    return None


def _become(command):
    """Turn this process into `python -m module arguments` in a new session."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    exec(command["setup"], {})
    sys.argv = [command["module"], *command["arguments"]]
    runpy.run_module(command["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Remove this folder, which is not part of any package.
    sys.path.pop(0)
    if (given := _serve()) is not None:
        _become(given)
