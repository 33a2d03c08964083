"""Which images are embedded together, and what is done."""

from experiments.searching.image_files import ImageFile
from experiments.searching.shards import EmbeddedShard, Journal, number_of_shards, shards_of

NAMES = [f"{folder}/{number:03d}.png" for folder in "abc" for number in range(60)]


def files(*names):
    return [ImageFile(name, 1, 1) for name in names]


def test_an_image_is_in_the_shard_of_its_path():
    columns = {"class": [name[0] for name in NAMES]}
    shards = shards_of(files(*NAMES), columns, 7)
    assert sorted(one.path for shard in shards for one in shard.files) == NAMES
    for shard in shards:
        assert shard.columns["class"] == [one.path[0] for one in shard.files]
    fewer = shards_of(files(*NAMES[1:]), {"class": columns["class"][1:]}, 7)
    assert len([shard for shard in fewer if shard not in shards]) == 1
    assert [number_of_shards(count) for count in (1, 100, 10_000, 10**8)] == [
        1, 2, 64, 20_000
    ]  # fmt: skip


def test_the_journal_goes_on_behind_a_cut_line(tmp_path):
    path, header = tmp_path / "journal", {"to": "x", "of": {"a": 1}}
    journal = Journal(path, header, 5)
    for number in (3, 1):
        journal.add(EmbeddedShard(number, 9, {"a.png": "cut"}, None), f"d{number}")
    with open(path, "a") as stream:
        stream.write('{"shard": 2, "dig')
    again = Journal(path, header, 8)  # there are more images by now
    assert again.shards == 5 and set(again.done) == {3, 1}
    assert again.done[3]["bad"] == {"a.png": "cut"}
    assert Journal(path, header | {"to": "y"}, 8).done == {}
