"""Images and tables in an object store, on a local S3 server."""

import numpy as np
import pytest
from photo_search import index_command, plain_embeddings, save_color_model, write_photos

from experiments import search
from experiments.options.command_line import run_command

pytest.importorskip("ray")
moto = pytest.importorskip("moto.server")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

NAMES = [f"{folder}/{number:03d}.png" for folder in "ab" for number in range(20)]


@pytest.fixture(scope="module")
def storage():
    """The file system of a server with the empty buckets `photos` and `vectors`."""
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    own = {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_DEFAULT_REGION": "us-east-1"}
    own |= {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret"}
    own |= {"AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.MonkeyPatch.context() as patched:  # for Arrow, LanceDB, and Ray's processes
        for name, value in own.items():
            patched.setenv(name, value)
        system = fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=address)
        for bucket in ("photos", "vectors"):
            system.create_dir(bucket)
        yield system
    server.stop()


@pytest.fixture(scope="module")
def made(storage, tmp_path_factory):
    """A model, and photos in a folder and in the bucket. One file is not an image."""
    folder = tmp_path_factory.mktemp("objects")
    write_photos(folder / "photos", NAMES)
    (folder / "photos" / "a" / "bad.jpg").write_text("no image")
    save_color_model(folder / "model")
    here = fs.LocalFileSystem()
    fs.copy_files(
        str(folder / "photos"), "photos/all", source_filesystem=here, destination_filesystem=storage
    )
    return folder


def command(made, output, images, to, *more):
    return index_command(
        f"--saved_model={made / 'model'}", f"--images={images}", f"--output_dir={output}",
        f"--to={to}", "--engine=ray", "--batch_size=16", "--workers=1", *more,
    )  # fmt: skip


def test_from_a_bucket_to_a_bucket(made, storage, tmp_path, capfd):
    """The embeddings equal a local run. The second command embeds no images."""
    given = (made, tmp_path / "out", "s3://photos/all", "parquet:s3://vectors/table")
    assert command(*given) == 0
    assert "40 images; 41 embedded in" in capfd.readouterr().out
    assert (tmp_path / "out" / "skipped.txt").read_text().startswith("a/bad.jpg\t")
    table = pq.read_table("vectors/table", filesystem=storage)
    assert sorted(table["path"].to_pylist()) == NAMES
    found = dict(zip(table["path"].to_pylist(), table["vector"].to_pylist()))
    for path, row in plain_embeddings(made, tmp_path / "plain").items():
        np.testing.assert_allclose(found[path], row, atol=1e-5)
    capfd.readouterr()
    assert command(*given) == 0
    assert "40 images; 0 embedded in" in capfd.readouterr().out


def test_a_lancedb_table_in_a_bucket_can_be_searched(made, storage, tmp_path, capsys):
    pytest.importorskip("lancedb")
    address = "lancedb:s3://vectors/lance"
    assert command(made, tmp_path / "out", "s3://photos/all", address) == 0
    done = capsys.readouterr().out
    assert "40 images; 41 embedded in" in done
    words = ["search", f"--index={address}", f"--query={made / 'photos' / NAMES[7]}", "--k=3"]
    assert run_command(search.main, words) == 2
    assert "--images=s3://photos/all" in capsys.readouterr().err
    assert f"--index={address} --images=s3://photos/all" in done
    words.append("--images=s3://photos/all")
    assert run_command(search.main, words) == 0
    assert NAMES[7] in capsys.readouterr().out
    assert run_command(search.main, [*words, "--images=s3://photos/gone"]) == 2
    assert "images is gone: s3://photos/gone. If it has moved, set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("images", "to", "said"),
    [
        ("s3://photos/nothing", "parquet:s3://vectors/one", "s3://photos/nothing cannot be used"),
        ("s3://nobody/all", "parquet:s3://vectors/one", "The specified bucket does not exist"),
        ("s3://photos/all", "lancedb:s3://nobody/one", "Are its address and credentials right?"),
    ],
)
def test_missing_buckets_and_objects(images, to, said, made, tmp_path, capfd):
    assert command(made, tmp_path / "out", images, to) == 2
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("error: ")]
    assert said in line
