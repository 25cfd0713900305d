"""A shard, its journal and where it is put, without a Ray cluster."""

import os
import shutil
import signal
import time

import numpy as np
import pytest

pytest.importorskip("ray")

from fastbuffer import OnlineBuffer
from fastbuffer.ray import ShardUnavailableError, identity, journal, placement, routing
from fastbuffer.ray.identity import Found, Identity
from fastbuffer.ray.shard import FewerFramesError, Shard
from helpers import make_episodes, refused_with

SPEC = {"number": {"shape": (), "dtype": np.int64}}
CAPACITY = 40
SELF = Identity("a", 0, 1)


def opening(**options):
    what = {"data_spec": SPEC, "buffer_capacity": CAPACITY, "fps": 10, "delta_timestamps": None}
    return what | {"durability": "process", "preallocate": True} | options


def shard(directory, is_new=True, says=SELF, **options):
    return Shard(directory, is_new, says, opening(**options), None)


def episode(numbers):
    """An episode whose frames have these numbers, with arrays as they come out of Ray's store."""
    data = make_episodes([len(numbers)], {}, np.random.default_rng(0)) | {"number": numbers}
    for array in data.values():
        array.flags.writeable = False
    return data


def numbers_of(some_shard):
    order = np.argsort(some_shard.column("index"))
    return some_shard.column("number")[order].tolist()


def token(number):
    return number.to_bytes(16, "little")


# Inserts that are asked for again


@pytest.mark.parametrize("durability", ["process", "fsync"])
def test_an_insert_that_is_asked_for_again_is_done_once(tmp_path, durability):
    first = shard(tmp_path, durability=durability)
    data = episode(np.arange(3))
    for _ in range(3):
        assert first.add(token(1), data).total == 3
    first.close()
    again = shard(tmp_path, durability=durability)  # as an actor that was started again
    assert again.add(token(1), data).total == 3
    assert again.add(token(2), data).total == 6
    assert numbers_of(again) == [0, 1, 2, 0, 1, 2]
    assert data["index"].tolist() == [0, 1, 2]


def test_an_insert_that_was_noted_and_not_done_is_done(tmp_path, monkeypatch):
    killed = shard(tmp_path)
    killed.add(token(1), episode(np.arange(3)))
    killed._open()[1].note(token(2), 7)  # and then its process ended
    killed.close()
    again = shard(tmp_path)
    assert again.add(token(3), episode(np.arange(10))).total == 13
    assert again.add(token(2), episode(np.arange(4))).total == 17
    assert again.add(token(2), episode(np.arange(4))).total == 17


def test_an_insert_that_was_refused_is_not_taken_for_done(tmp_path):
    some = shard(tmp_path)
    bad = episode(np.arange(3)) | {"number": np.array(["a", "b", "c"])}
    for _ in range(2):
        refused_with("number", some.add, token(1), bad)
    assert some.add(token(2), episode(np.arange(5))).total == 5
    assert some.add(token(1), episode(np.arange(3))).total == 8


def test_an_insert_of_more_than_fits_is_done_once(tmp_path):
    some = shard(tmp_path)
    for _ in range(2):
        state = some.add(token(1), episode(np.arange(CAPACITY + 7)))
        assert (state.num_frames, state.total) == (CAPACITY, CAPACITY + 7)
    assert numbers_of(some) == [*range(7, CAPACITY + 7)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_killed_at_any_moment_loses_and_repeats_nothing(tmp_path):
    """The parent, as a client, asks again for what was not confirmed."""
    confirmed = 0
    rng = np.random.default_rng(0)
    for _ in range(40):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                some = shard(tmp_path)
                for number in range(confirmed, confirmed + 10_000):
                    some.add(token(number + 1), episode(np.full(1 + number % 3, number)))
                    os.write(write_end, number.to_bytes(4, "little"))
            finally:
                os._exit(1)
        os.close(write_end)
        os.read(read_end, 4)
        time.sleep(rng.uniform(0, 0.004))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as answers:
            confirmed += 1 + len(answers.read()) // 4
    some = shard(tmp_path)
    some.add(token(confirmed + 1), episode(np.full(1 + confirmed % 3, confirmed)))
    expected = np.repeat(np.arange(confirmed + 1), np.arange(confirmed + 1) % 3 + 1)
    assert confirmed > 100
    assert some.state().total == len(expected)
    found = numbers_of(some)  # a kill may cost the frames that the insert was overwriting
    assert found == expected[-len(found) :].tolist()


def test_the_journal_remembers_the_last_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_RECORDS", 4)
    for opened in range(3):
        notes = journal.Journal(tmp_path, 4 * opened, fsync=False)
        for number in range(4 * opened, 4 * opened + 4):
            notes.note(token(number), number + 1)
        known = [notes.total_after(token(number)) for number in range(4 * opened + 4)]
        assert known == [None] * 4 * opened + [*range(4 * opened + 1, 4 * opened + 5)]
        notes.close()
    assert (tmp_path / "_adds").stat().st_size == 4 * 32


def test_a_torn_note_is_none(tmp_path):
    notes = journal.Journal(tmp_path, 0, fsync=False)
    for number in (1, 2):
        notes.note(token(number), number)
    notes.close()
    with (tmp_path / "_adds").open("r+b") as file:
        file.seek(32 + 5)
        file.write(b"x")
    notes = journal.Journal(tmp_path, 2, fsync=False)
    assert [notes.total_after(token(number)) for number in (1, 2)] == [1, None]
    notes.note(token(3), 3)
    assert notes.total_after(token(3)) == 3


# What is in a shard


def test_a_buffer_with_a_shards_files_is_sound(tmp_path):
    some = shard(tmp_path)
    some.add(token(1), episode(np.arange(3)))
    some.claim()
    some.close()
    with OnlineBuffer(tmp_path) as buffer:
        assert buffer.verify() == []


def test_fewer_frames_than_were_counted_on_are_an_error(tmp_path):
    some = shard(tmp_path)
    some.add(token(1), episode(np.arange(3)))
    assert some.read(np.array([2]), 3, {})["number"].tolist() == [2]
    with pytest.raises(FewerFramesError, match="expected 4 live frames, got 3"):
        some.read(np.array([2]), 4, {})


def test_sums_and_the_largest_priority(tmp_path):
    some = shard(tmp_path)
    assert some.mass(0.5) == (0, np.inf)
    assert some.draw(0.5, 0, 0, 0, 3) is None
    assert some.sample(0.5, 0, 0, 3, 1.0) is None
    some.add(token(1), episode(np.arange(4)))
    some.update(0.5, np.arange(4), np.array([0, 4, 9, 1.0]))
    assert some.mass(0.5) == (6, 1)
    assert some.mass(1.0) == (14, 1)
    some.raise_largest(0.5, 16.0)
    assert some.priorities(0.5, None).tolist() == [0, 4, 9, 1]
    some.add(token(2), episode(np.arange(2)))
    some.raise_largest(1.0, 2.0)
    assert some.priorities(1.0, np.array([3, 4, 5])).tolist() == [1, 16, 16]
    for wrong in (-1.0, np.nan, np.inf):
        refused_with("priorities: expected finite", some.raise_largest, 0.5, wrong)


# Whose shard a directory is


def test_an_empty_disk_does_not_pass_for_a_shard(tmp_path):
    directory = tmp_path / "shard-00000"
    some = shard(directory)
    some.claim()
    some.close()
    assert shard(directory, is_new=False).state().total == 0
    other = Identity("b", 0, 1)
    refused_with("expected.*'b'.*got.*'a'", shard(directory, says=other).state)
    shutil.rmtree(directory)
    refused_with("shard-00000: expected.*got None", shard(directory, is_new=False).state)
    assert not directory.exists()


def test_shards_are_found_by_number(tmp_path):
    for number in (3, 11):
        some = shard(tmp_path / f"shard-{number:05d}", says=Identity("a", number, 12))
        some.claim()
    shard(tmp_path / "shard-00004").state()
    (tmp_path / "shard-x").mkdir()
    (tmp_path / "shard-00007").write_bytes(b"")
    found = identity.find(str(tmp_path))
    assert {number: entry.identity for number, entry in found.items()} == {
        3: Identity("a", 3, 12),
        4: None,
        11: Identity("a", 11, 12),
    }
    assert len({entry.place for entry in found.values()}) == 3
    assert identity.find(str(tmp_path / "none")) == {}
    (tmp_path / "shard-00003" / "_shard.json").write_text("{}")
    refused_with("_shard.json: expected the identity", identity.find, str(tmp_path))


def claimed(number, num_shards=3, buffer="a", machine="m"):
    return Found(Identity(buffer, number, num_shards), (machine, 1, number))


def unclaimed(number):
    return Found(None, ("m", 1, number))


def test_new_shards_go_to_all_nodes_in_turns():
    empty = {"x": {}, "y": {}, "z": {}}
    assert placement.buffer_of(empty, 5) is None
    assert placement.assigned(empty, 5, is_new=True) == ["x", "y", "z", "x", "y"]


def test_shards_are_where_they_were():
    disks = {"x": {2: claimed(2), 0: claimed(0)}, "y": {1: claimed(1)}, "z": {}}
    assert placement.buffer_of(disks, 3) == "a"
    assert placement.assigned(disks, 3, is_new=False) == ["x", "y", "x"]


def test_nodes_that_share_a_disk_share_its_shards():
    both = {number: claimed(number) for number in range(3)}
    disks = {"x": both, "y": both}
    assert placement.buffer_of(disks, 3) == "a"
    assert placement.assigned(disks, 3, is_new=False) == ["x", "y", "x"]


def test_making_a_buffer_that_was_cut_off_goes_on():
    disks = {"x": {0: claimed(0), 2: unclaimed(2)}, "y": {1: unclaimed(1), 0: unclaimed(0)}}
    assert placement.buffer_of(disks, 3) == "a"
    assert placement.assigned(disks, 3, is_new=False) == ["x", "y", "x"]
    disks = {"x": {}, "y": {1: unclaimed(1)}}
    assert placement.buffer_of(disks, 2) is None
    assert placement.assigned(disks, 2, is_new=True) == ["x", "y"]


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ShardUnavailableError, match="shard 1 of 3: expected its directory on one"):
        placement.assigned({"x": {0: claimed(0), 2: claimed(2)}}, 3, is_new=False)
    two = {"x": {0: claimed(0)}, "y": {1: claimed(1, buffer="b")}}
    refused_with("write_dir: .*buffers a, b", placement.buffer_of, two, 3)
    refused_with("num_shards: expected 3", placement.buffer_of, {"x": {0: claimed(0)}}, 2)
    copied = {"x": {0: claimed(0)}, "y": {0: claimed(0, machine="n")}}
    refused_with("shard 0: expected one directory.*nodes x, y", placement.buffer_of, copied, 3)


# Where episodes go


COLUMNS = [
    ("episode_index", "int64", []),
    ("frame_index", "int64", []),
    ("index", "int64", []),
    ("number", "float32", [2]),
    ("timestamp", "float64", []),
]


def test_episodes_are_cut_where_their_number_changes(rng):
    data = make_episodes([3, 1, 2], {"number": {"shape": (2,), "dtype": np.float32}}, rng)
    checked = routing.checked(data | {"other": 1}, COLUMNS)
    episodes = routing.episodes_of(checked)
    assert episodes == [slice(0, 3), slice(3, 4), slice(4, 6)]
    part = routing.joined_episodes(checked, [episodes[0], episodes[2]])
    assert part["episode_index"].tolist() == [0, 0, 0, 1, 1]
    assert part["index"].tolist() == [0, 1, 2, 3, 4]
    assert part["frame_index"].tolist() == [0, 1, 2, 0, 1]
    assert part["number"].tobytes() == data["number"][[0, 1, 2, 4, 5]].tobytes()
    alone = routing.joined_episodes(checked, [episodes[2]])
    assert np.shares_memory(alone["number"], data["number"])
    assert alone["episode_index"].tolist() == [0, 0]
    assert routing.episodes_of({"episode_index": np.empty(0, np.int64)}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": None}, r"data: expected the keys .*'number'"),
        ({"number": np.zeros((3, 3))}, r"data\['number'\]: expected float32 of shape \(4, 2\)"),
        ({"number": np.zeros((3, 2))}, r"data\['number'\]: expected float32 of shape \(4, 2\)"),
        ({"number": np.zeros((4, 2), complex)}, r"data\['number'\]: .*got complex128"),
        ({"index": np.arange(1, 5)}, r"data\['index'\]: expected 0 for the first frame, got 1"),
        ({"index": np.zeros((4, 1), int)}, r"data\['index'\]: expected int64 of shape \(4,\)"),
        ({"index": 3}, r"data\['\w+'\]: expected int64 of shape \(0,\)"),
        ({"episode_index": np.array([1, 1, 2, 2])}, r"data\['episode_index'\]: expected 0"),
        ({"episode_index": np.array([0, 1, 0, 2])}, "got 0 after 1 at frame 2"),
        ({"timestamp": np.array([0, 1, np.nan, 2])}, "finite seconds, got nan at frame 2"),
    ],
)
def test_what_a_shard_would_refuse_is_refused_before(rng, change, said):
    data = make_episodes([4], {"number": {"shape": (2,), "dtype": np.float32}}, rng) | change
    data = {key: value for key, value in data.items() if value is not None}
    refused_with(said, routing.checked, data, COLUMNS)


def test_what_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="data: expected a dict of arrays, got list"):
        routing.checked([], COLUMNS)


def test_shards_fill_at_the_same_pace():
    router = routing.Router([100, 0, 0, 50])
    rng = np.random.default_rng(0)
    loads = np.array([100, 0, 0, 50])
    lengths = rng.integers(1, 30, 100)
    for length in lengths:
        (to,) = router.routed([slice(0, length)])
        loads[to] += length
    assert np.ptp(loads) < 30
    router.learned(2, 10_000)  # what others have added
    assert 2 not in router.routed([slice(0, 1)] * 50)
    router = routing.Router([0, 0])
    one, other = router.routed([slice(0, 5), slice(0, 5)])
    router.refused([slice(0, 5)], [one])
    assert {one, other} == {0, 1}
    assert router.routed([slice(0, 1)]) == [one]
