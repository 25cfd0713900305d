"""A buffer over the nodes of a Ray cluster of several nodes on this machine."""

import os
import pickle
import signal
import threading
import time
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fastbuffer import BufferLockedError, OnlineBuffer, PrioritizedSampler, TimestampToleranceError
from fastbuffer.ray import ShardedBuffer, ShardUnavailableError
from fastbuffer.ray import sharded_buffer as module
from helpers import assert_drawn_by, assert_equal, make_episodes, refused_with
from model import Model

# Ray opens files and sockets of its own, and closes some of them only when the process ends.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

FPS = 10
SPEC = {
    "number": {"shape": (), "dtype": np.int64},
    "image": {"shape": (40, 50, 3), "dtype": np.uint8},
    "next.reward": {"shape": (), "dtype": np.float32},
}
DELTAS = {"number": [-0.1, 0.0, 0.2]}
STORE = {"object_store_memory": 150_000_000, "include_dashboard": False}


def episodes(lengths, first=0, seed=0):
    """Whole episodes whose frames are numbered from `first` on."""
    data = make_episodes(lengths, SPEC, np.random.default_rng(seed), FPS)
    data["next.reward"] = np.arange(len(data["index"]), dtype=np.float32) % 7
    return data | {"number": np.arange(first, first + len(data["index"]))}


def numbered(*numbers, count=1):
    """Episodes of `count` frames each, of which all frames have the episode's number."""
    data = make_episodes([count] * len(numbers), {}, np.random.default_rng(0), FPS)
    return data | {"number": np.repeat(numbers, count)}


NUMBER = {"number": {"shape": (), "dtype": np.int64}}


@pytest.fixture(scope="module")
def import_path():
    """Workers import this file, too."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture(scope="module")
def earlier(import_path, tmp_path_factory):
    """The directory of a buffer that another session of Ray made, and did not close."""
    directory = tmp_path_factory.mktemp("earlier")
    ray.init(num_cpus=1, log_to_driver=False, **STORE)
    buffer = ShardedBuffer(2, directory, NUMBER, 20, FPS, output="numpy")
    for number in range(6):
        buffer.add_data(numbered(number))
    ray.shutdown()
    return directory


@pytest.fixture(scope="module")
def cluster(earlier):
    """Two nodes; this process is on the first."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **STORE})
    cluster.add_node(num_cpus=2, object_store_memory=STORE["object_store_memory"])
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


LENGTHS = np.random.default_rng(7).integers(1, 12, 20).tolist()


@pytest.fixture(scope="module")
def model():
    """All episodes of `filled`, in one buffer."""
    model = Model(SPEC, 150, FPS, DELTAS)
    model.add_data(episodes(LENGTHS))
    return model


@pytest.fixture(scope="module")
def filled(cluster, tmp_path_factory):
    """A buffer with room left, whose content tests leave as it is."""
    directory = tmp_path_factory.mktemp("filled")
    with ShardedBuffer(3, directory, SPEC, 150, FPS, DELTAS, output="numpy") as buffer:
        data = episodes(LENGTHS)
        index = data["index"].copy()
        buffer.add_data({key: array[: sum(LENGTHS[:12])] for key, array in data.items()})
        for at in range(12, 20):
            frames = slice(sum(LENGTHS[:at]), sum(LENGTHS[: at + 1]))
            episode = {key: array[frames].copy() for key, array in data.items()}
            for key in ("index", "episode_index"):
                episode[key] -= episode[key][0]
            buffer.add_data(episode)
        assert index.tolist() == data["index"].tolist()  # the caller's arrays are left alone
        yield buffer


@pytest.fixture(scope="module")
def busy(cluster, tmp_path_factory):
    """A buffer that tests add to; each adds numbers of its own."""
    directory = tmp_path_factory.mktemp("busy")
    with ShardedBuffer(2, directory, NUMBER, 40_000, FPS, output="numpy") as buffer:
        yield buffer


def live_positions(buffer):
    return buffer._spread(np.arange(len(buffer)), buffer._num_frames())


def process_of(buffer, shard):
    """The id of the process of a shard's actor."""
    actor = buffer._shards.places[shard].actor
    return ray.get(actor.__ray_call__.remote(lambda shard: os.getpid()), timeout=30)


@contextmanager
def stopped(process):
    """A process that does nothing for a while."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


# What is in it


def test_a_new_session_of_ray_finds_the_shards(cluster, earlier):
    with ShardedBuffer(2, earlier, output="numpy") as buffer:
        assert (buffer.buffer_capacity, buffer.fps, buffer.num_episodes) == (20, FPS, 6)
        assert sorted(buffer.get_data_by_key("number")) == [*range(6)]
        buffer.add_data(numbered(6, 7))
        assert sorted(buffer.get_data_by_key("number")) == [*range(8)]


def test_shards_are_on_all_nodes_and_the_package_is_this_one(cluster, filled):
    nodes = [place.node_id for place in filled._shards.places]
    assert set(nodes) == {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for place in filled._shards.places:
        where = place.actor.__ray_call__.remote(
            lambda shard: (ray.get_runtime_context().get_node_id(), module.__file__)
        )
        assert ray.get(where) == (place.node_id, module.__file__)
    assert repr(filled).endswith("num_shards=3, nodes=2, buffer_capacity=150, fps=10.0)")


def test_every_episode_is_there_whole_and_once(filled, model):
    assert len(filled) == filled.num_frames == sum(LENGTHS)
    assert filled.num_episodes == len(LENGTHS)
    expected = model.get_data_by_key("episode_index")
    numbers = filled.get_data_by_key("number")
    assert sorted(numbers) == [*range(sum(LENGTHS))]
    shard_of = live_positions(filled) // filled.shard_capacity
    for episode in range(len(LENGTHS)):
        frames = np.flatnonzero(expected[numbers] == episode)
        assert np.ptp(shard_of[frames]) == 0
        assert np.ptp(filled.get_data_by_key("episode_index")[frames]) == 0
        assert (np.diff(numbers[frames]) == 1).all()
    sizes = np.bincount(shard_of)
    assert np.ptp(sizes) <= max(LENGTHS)
    assert_equal(filled.get_data_by_key("image"), model.get_data_by_key("image")[numbers])


def test_batches_are_those_of_one_buffer(filled, model):
    positions = np.random.default_rng(0).permutation(live_positions(filled))
    numbers = filled.get_batch(positions)["number"][:, 1]
    assert len(set(numbers)) == len(positions)
    for chosen in (slice(None), slice(0, 1), slice(0, 0), slice(5, 9)):
        batch, expected = filled.get_batch(positions[chosen]), model.batch(numbers[chosen])
        for own in ("index", "episode_index"):  # which are counted in each shard
            del batch[own], expected[own]
        assert_equal(batch, expected)
        assert all(array.flags.writeable for array in batch.values())


def test_returns_over_several_steps(filled, tmp_path, model):
    single = OnlineBuffer(tmp_path, SPEC, 150, FPS, DELTAS, output="numpy")
    single.add_data(episodes(LENGTHS))
    positions = live_positions(filled)[::3]
    numbers = filled.get_batch(positions)["number"][:, 1]
    steps = {"n_step": 3, "gamma": 0.9}
    batch, expected = filled.get_batch(positions, **steps), single.get_batch(numbers, **steps)
    assert "bootstrap.number" in batch
    for key in expected:
        if not key.endswith("index"):
            assert_equal(batch[key], expected[key])
    assert "discount" in filled.sample(2, **steps)


def test_large_answers_are_views_of_shared_memory(filled):
    """Ray copies none of it into this process: the batch's own memory is the only copy."""
    reading = filled._reading(live_positions(filled)[:40], {})
    (answer,) = filled._shards.results(reading._calls[:1])
    image = answer["image"]
    assert image.nbytes > 200_000
    assert not image.flags.writeable
    address = image.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < end:
            mapped = line
    assert "/dev/shm" in mapped or "plasma" in mapped


def test_tensors(cluster, filled, torch):
    state = filled.__getstate__() | {"_output": "torch"}
    tensors = ShardedBuffer.__new__(ShardedBuffer)
    tensors.__setstate__(state)
    batch = tensors.sample(3, seed=1)
    assert isinstance(batch["image"], torch.Tensor)
    assert_equal(batch["image"], filled.sample(3, seed=1)["image"])
    tensors.sample(4, generator=torch.Generator())
    order = [next(iter(tensors.loader(9, shuffle=True, seed=2)))["number"] for _ in range(2)]
    assert order[0].tolist() == order[1].tolist()
    generator = torch.Generator().manual_seed(3)
    epoch = torch.cat(
        [b["number"][:, 1] for b in tensors.loader(9, shuffle=True, generator=generator)]
    )
    assert sorted(epoch.tolist()) == [*range(sum(LENGTHS))]
    _, weights = PrioritizedSampler(tensors).sample(4)
    assert weights.dtype == torch.float32


# Draws


def drawn_numbers(buffer, count, **how):
    generator = np.random.default_rng(5)
    draws = [buffer.sample(2000, generator=generator, **how) for _ in range(count // 2000)]
    return np.concatenate([batch["number"][:, 1] for batch in draws])


def test_draws_are_uniform(filled):
    drawn = drawn_numbers(filled, 40_000)
    assert_drawn_by(drawn, np.ones(sum(LENGTHS)))


def test_draws_are_by_weight(filled):
    weights = np.random.default_rng(1).choice([0, 0.1, 1, 5], sum(LENGTHS))
    by_position = weights[filled.get_data_by_key("number")]
    assert_drawn_by(drawn_numbers(filled, 40_000, weights=by_position), weights)


def test_a_seed_draws_the_same(filled):
    first, again, other = (filled.sample(20, seed=seed)["number"] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(filled.sample(0)["number"]) == 0


def test_what_others_add_is_drawn_at_once(cluster, tmp_path):
    with ShardedBuffer(2, tmp_path, NUMBER, 40, FPS, output="numpy") as buffer:
        refused_with("at least one live frame to sample", buffer.sample, 1)
        refused_with("at least one live frame to draw", PrioritizedSampler(buffer).sample, 1)
        assert list(buffer.loader(3)) == []
        assert len(buffer.get_batch([])["number"]) == 0
        buffer.add_data(make_episodes([], NUMBER, np.random.default_rng(0)))
        assert len(buffer) == 0
        buffer.add_data(numbered(0, 1, 2))
        assert set(buffer.sample(300)["number"]) == {0, 1, 2}
        ray.get(ray.remote(num_cpus=0)(lambda copy: copy.add_data(numbered(3, 4))).remote(buffer))
        assert_drawn_by(buffer.sample(5000, seed=0)["number"], np.ones(5))
        for first in range(5, 100, 5):
            buffer.add_data(numbered(*range(first, first + 5)))
        assert sorted(buffer.get_data_by_key("number")) == [*range(60, 100)]  # the newest ones
        assert_drawn_by(buffer.sample(20_000, seed=0)["number"] - 60, np.ones(40))


def test_draws_and_weights_by_priority_are_those_of_one_buffer(filled, tmp_path):
    count = sum(LENGTHS)
    single = OnlineBuffer(tmp_path, SPEC, 150, FPS, output="numpy")
    single.add_data(episodes(LENGTHS))
    priorities = np.random.default_rng(2).choice([0, 0.01, 0.5, 1, 7], count)
    alone = PrioritizedSampler(single, 0.7, 0.5)
    alone.update(range(count), priorities)
    positions, expected = alone.sample(20_000)
    weight_of = dict(zip(positions.tolist(), expected.tolist(), strict=True))

    sampler = PrioritizedSampler(filled, 0.7, 0.5, seed=3)
    numbers = filled.get_data_by_key("number")
    sampler.update(live_positions(filled), priorities[numbers])
    assert sampler.priorities().tolist() == priorities[numbers].tolist()
    positions, weights = sampler.sample(40_000)
    drawn = filled.get_batch(positions)["number"][:, 1]
    assert_drawn_by(drawn, np.where(priorities > 0, priorities**0.7, 0))
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, [weight_of[number] for number in drawn], rtol=1e-5)

    some = positions[:50]
    assert sampler.priorities(some).tolist() == priorities[drawn[:50]].tolist()
    again = PrioritizedSampler(filled, 0.7, 0.5, seed=3)
    assert (
        again.sample(10)[0].tolist()
        == PrioritizedSampler(filled, 0.7, seed=3).sample(10)[0].tolist()
    )
    assert (
        again.sample(10)[0].tolist()
        != PrioritizedSampler(filled, 0.7, seed=4).sample(10)[0].tolist()
    )

    epoch = PrioritizedSampler(filled, 0.7, num_samples=40_000)
    drawn = np.concatenate([filled.get_batch(p)["number"][:, 1] for p in epoch.batches(8000)])
    assert_drawn_by(drawn, np.where(priorities > 0, priorities**0.7, 0))
    resumed = PrioritizedSampler(filled, 0.7, num_samples=40_000)
    batches, state = iter(epoch.batches(500)), None
    next(batches)
    state = epoch.state_dict()
    resumed.load_state_dict(state)
    assert next(iter(resumed.batches(500))).tolist() == next(batches).tolist()
    loaded = next(iter(filled.loader(64, sampler=PrioritizedSampler(filled, 0.7))))
    assert (priorities[loaded["number"][:, 1]] > 0).all()

    sampler.update(live_positions(filled), np.zeros(count))
    refused_with("priorities: expected one above 0", sampler.sample, 1)
    assert len(sampler.sample(0)[0]) == 0
    refused_with("priorities: .*got nan at position 1", sampler.update, positions[:2], [1, np.nan])
    refused_with("priorities: .*got -1.0 at position 0", sampler.update, positions[:2], [-1, 1])
    with pytest.raises(IndexError, match="position 149: expected that of a live frame"):
        sampler.update([int(positions[0]), 149], [1, 1])
    assert not sampler.priorities().any()
    sampler.update([], [])


def test_new_frames_of_any_shard_get_the_largest_priority(cluster, tmp_path):
    with ShardedBuffer(3, tmp_path, NUMBER, 60, FPS, output="numpy") as buffer:
        buffer.add_data(numbered(0))
        sampler = PrioritizedSampler(buffer)
        sampler.update(live_positions(buffer), [9.0])
        buffer.add_data(numbered(*range(1, 9)))
        assert sampler.priorities().tolist() == [9.0] * 9


# The loader


def test_an_epoch_has_every_frame_once(filled):
    count = sum(LENGTHS)
    in_order = filled.get_data_by_key("number").tolist()
    loader = filled.loader(16)
    for _ in range(2):
        batches = [batch["number"][:, 1].tolist() for batch in loader]
        assert [len(batch) for batch in batches] == [16] * (count // 16) + [count % 16]
        assert [*chain(*batches)] == in_order
    epochs = [
        [
            batch["number"][:, 1].tolist()
            for batch in filled.loader(16, shuffle=True, seed=s, drop_last=True)
        ]
        for s in (1, 1, 2)
    ]
    assert epochs[0] == epochs[1] != epochs[2]
    flat = [*chain(*epochs[0])]
    assert len(set(flat)) == len(flat) == count - count % 16
    sampled = [int(position) for position in live_positions(filled)[::5]]
    got = [batch["number"][:, 1] for batch in filled.loader(4, sampler=sampled, prefetch=0)]
    assert np.concatenate(got).tolist() == in_order[::5]
    full = list(filled.loader(4, sampler=sampled, drop_last=True))
    assert [len(batch["number"]) for batch in full] == [4] * (len(sampled) // 4)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_loader_asks_for_so_many_batches_ahead(filled, monkeypatch, prefetch):
    asked = []
    begin = filled._reading
    monkeypatch.setattr(filled, "_reading", lambda *a, **o: asked.append(1) or begin(*a, **o))
    for taken, _ in enumerate(filled.loader(8, prefetch=prefetch), 1):
        assert len(asked) == min(taken + prefetch, -(-sum(LENGTHS) // 8))


# Copies and neighbours


def test_a_copy_in_a_task_talks_to_the_same_shards(filled):
    @ray.remote(num_cpus=0)
    def work(copy):
        with copy:
            length, batch = len(copy), copy.sample(4, seed=1)
        return length, batch["number"]

    length, numbers = ray.get(work.remote(filled))
    assert length == sum(LENGTHS)
    assert numbers.tolist() == filled.sample(4, seed=1)["number"].tolist()
    assert len(filled) == length  # its end did not end the shards


def test_each_node_reads_its_own_shards(cluster, filled):
    @ray.remote(num_cpus=0)
    def near(copy, rank):
        with copy.nearest(rank) as shard:
            return shard.write_dir, shard[:]

    seen = []
    for node in {place.node_id for place in filled._shards.places}:
        own = [place for place in filled._shards.places if place.node_id == node]
        only = near.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        for rank in range(3):
            directory, items = ray.get(only.remote(filled, rank))
            assert directory == own[rank % len(own)].directory
            if rank < len(own):
                seen += items["number"][:, 1].tolist()
    assert sorted(seen) == [*range(sum(LENGTHS))]
    with pytest.raises(OSError, match='mode="a"'):
        filled.nearest().add_data(episodes([1]))
    refused_with("local_rank: expected at least 0", filled.nearest, -1)


def test_a_node_without_a_shard_says_so(cluster, tmp_path):
    with ShardedBuffer(1, tmp_path, NUMBER, 10, FPS, output="numpy") as buffer:
        (place,) = buffer._shards.places
        others = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != place.node_id]
        ask = ray.remote(num_cpus=0)(lambda copy: copy.nearest()).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(others[0], soft=False)
        )
        with pytest.raises(ShardUnavailableError, match=f"nearest: .*{place.node_id}, got one on"):
            ray.get(ask.remote(buffer))


# Ray Data warns of the options that it sets itself.
@pytest.mark.filterwarnings("ignore:.use_\\w+. is deprecated:DeprecationWarning")
def test_workers_of_ray_train_read_their_nearest_shards(cluster, filled, tmp_path, torch):
    pytest.importorskip("ray.train.torch")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def loop(config):
        context = ray.train.get_context()
        with config["buffer"].nearest(context.get_local_rank()) as shard:
            numbers = [b["number"][:, 1] for b in shard.loader(8)]
        near = torch.cat([torch.as_tensor(part) for part in numbers]).tolist()
        far = config["buffer"].sample(4, seed=1)["number"].tolist()
        node = ray.get_runtime_context().get_node_id()
        path = config["results"] / str(context.get_world_rank())
        path.write_bytes(pickle.dumps((node, str(shard.write_dir), near, far)))

    trainer = TorchTrainer(
        loop,
        train_loop_config={"buffer": filled, "results": tmp_path},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=str(tmp_path / "runs")),
    )
    trainer.fit()
    results = [pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in (0, 1)]
    assert len({node for node, *_ in results}) == 2
    numbers = filled.get_data_by_key("number")
    shard_of = live_positions(filled) // filled.shard_capacity
    for node, directory, near, far in results:
        (place,) = (p for p in filled._shards.places if str(p.directory) == directory)
        assert place.node_id == node
        assert near == numbers[shard_of == place.shard].tolist()
        assert far == filled.sample(4, seed=1)["number"].tolist()


# What goes wrong


def test_killed_actors_lose_and_repeat_nothing(busy):
    stop, added, errors = threading.Event(), [], []

    def add(thread):
        number = thread
        try:
            while not stop.is_set():
                busy.add_data(numbered(number, number + 1, count=2))
                added.extend([number, number + 1])
                number += 10
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(2 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        before = len(added)
        while len(added) < before + 40 and not errors:
            time.sleep(0.01)
        place = busy._shards.places[turn % 2]
        if turn < 3:
            os.kill(process_of(busy, place.shard), signal.SIGKILL)
        else:
            ray.kill(place.actor, no_restart=False)
        assert len(busy.sample(4)["number"]) == 4  # reads go on
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(busy.get_data_by_key("number")) == sorted(2 * added)
    assert busy.num_episodes == len(added)
    for place in busy._shards.places:
        assert OnlineBuffer(place.directory, mode="r").verify() == []


def test_a_slow_shard_holds_up_who_adds_to_it(busy, monkeypatch):
    sent, finished = [], []
    start = busy._shards.start
    first, count = 2_000_000, 20

    def counting(shard, method, *arguments):
        if method == "add":
            sent.append(shard)
        return start(shard, method, *arguments)

    monkeypatch.setattr(busy._shards, "start", counting)

    def add(thread):
        for turn in range(count):
            busy.add_data(numbered(first + count * thread + turn))
            finished.append(thread)

    threads = [threading.Thread(target=add, args=(k,)) for k in range(3)]
    with stopped(process_of(busy, 0)):
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        assert len(sent) - len(finished) == len(threads)  # one each is on its way
        assert sent.count(0) == len(threads)
        assert len(finished) < len(threads) * count
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    numbers = busy.get_data_by_key("number")
    assert sorted(numbers[numbers >= first]) == [*range(first, first + len(threads) * count)]


def test_a_shard_that_does_not_answer_is_named(busy, monkeypatch):
    number = 3_000_000
    place = busy._shards.places[0]
    monkeypatch.setattr(busy._shards, "_timeout_s", 1)
    with stopped(process_of(busy, 0)):
        began = time.monotonic()
        for call in (
            lambda: busy.sample(1),
            lambda: busy.add_data(numbered(number, number)),
        ):
            with pytest.raises(ShardUnavailableError, match=f"shard 0 on node {place.node_id}"):
                call()
        assert time.monotonic() - began < 10
    monkeypatch.undo()
    # The insert was on its way, and is done once the shard goes on.
    found = []
    while len(found) < 2:
        found = [one for one in busy.get_data_by_key("number") if one >= number]
        time.sleep(0.05)
    assert found == [number, number]


def test_a_lost_node_is_named_and_the_others_go_on(cluster, tmp_path):
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE["object_store_memory"])
    try:
        buffer = ShardedBuffer(3, tmp_path, NUMBER, 90, FPS, output="numpy")
        (lost,) = (p for p in buffer._shards.places if p.node_id == node.node_id)
        buffer.add_data(numbered(*range(9)))
    finally:
        cluster.remove_node(node)
    began = time.monotonic()
    said = f"shard {lost.shard} on node {node.node_id} .*shard-0000{lost.shard}"
    for call in (
        lambda: buffer.sample(64),
        lambda: len(buffer),
        lambda: buffer.add_data(numbered(9, 10, 11)),
        lambda: PrioritizedSampler(buffer).sample(4),
    ):
        with pytest.raises(ShardUnavailableError, match=said):
            call()
    assert time.monotonic() - began < 20
    left = [k for k in range(3) if k != lost.shard]
    positions = [buffer.shard_capacity * k for k in left]
    buffer._known[left] = 3
    assert len(buffer.get_batch(positions)["number"]) == 2
    buffer.close()
    with OnlineBuffer(lost.directory, mode="r", output="numpy") as shard:
        assert sorted(shard.get_data_by_key("number")) == [*shard.get_data_by_key("number")]
        assert len(shard) == 3


def test_a_shard_that_lost_frames_is_not_taken_for_full(cluster, tmp_path):
    with ShardedBuffer(1, tmp_path, NUMBER, 10, FPS, output="numpy") as buffer:
        buffer.add_data(numbered(*range(4)))
        buffer._known[:] = 10  # as if it had been full before its process was killed
        assert_drawn_by(buffer.sample(4000, seed=0)["number"], np.ones(4))


def test_what_is_closed_says_so(cluster, tmp_path):
    buffer = ShardedBuffer(1, tmp_path, NUMBER, 10, FPS, output="numpy")
    buffer.add_data(numbered(1))
    copy = ShardedBuffer.__new__(ShardedBuffer)
    copy.__setstate__(buffer.__getstate__())
    buffer.close()
    buffer.close()
    refused_with("buffer: expected one that is open", buffer.sample, 1)
    with pytest.raises(ShardUnavailableError, match="shard 0 on node"):
        copy.sample(1)
    with OnlineBuffer(tmp_path / "shard-00000", output="numpy") as shard:
        shard.add_data(numbered(2))  # nobody has its lock


def test_errors_of_shards_arrive_as_they_are(cluster, tmp_path):
    deltas = {"number": [0.5]}
    with ShardedBuffer(1, tmp_path, NUMBER, 10, FPS, deltas, output="numpy") as buffer:
        with OnlineBuffer(tmp_path / "shard-00000") as other:
            other.add_data(numbered(1, count=3) | {"timestamp": np.array([0.0, 1.0, 2.0])})
            with pytest.raises(BufferLockedError, match=str(os.getpid())):
                buffer.add_data(numbered(1))
        buffer.add_data(numbered(2))
        assert buffer.get_data_by_key("number").tolist() == [1, 1, 1, 2]
        with pytest.raises(TimestampToleranceError, match="episode"):
            buffer.get_batch([0])
        with pytest.raises(KeyError, match="nothing"):
            buffer.get_data_by_key("nothing")
    refused_with("fps: expected 10", ShardedBuffer, 1, tmp_path, fps=11, output="numpy")
    with ShardedBuffer(1, tmp_path, NUMBER, tolerance_s=1.0, output="numpy") as buffer:
        assert buffer.tolerance_s == 1.0
        assert buffer.delta_timestamps is None


def test_what_is_not_allowed_is_refused_before_anything_is_made(cluster, filled, tmp_path):
    directory = tmp_path / "new"
    for said, arguments, options in [
        ("num_shards: expected at least 1", (0, directory), {}),
        ("buffer_capacity: expected a multiple", (3, directory, NUMBER, 100), {}),
        ("buffer_capacity: expected at least 1", (3, directory, NUMBER, 0), {}),
        ("timeout_s: expected at least 0", (1, directory), {"timeout_s": -1}),
        ("durability: expected", (1, directory), {"durability": "maybe"}),
        ("output: expected", (1, directory), {"output": "jax"}),
        ("tolerance_s: expected at least 0", (1, directory), {"tolerance_s": np.nan}),
        ("num_shards: expected 3", (2, filled.write_dir), {}),
    ]:
        refused_with(said, ShardedBuffer, *arguments, **options)
    for arguments in [("2", directory), (1, 5), (1, directory, 5), (1, directory, NUMBER, 1.5)]:
        with pytest.raises(TypeError, match="expected"):
            ShardedBuffer(*arguments)
    assert not directory.exists()

    for said, call, options in [
        ("batch_size: expected at least 0", filled.sample, {"batch_size": -1}),
        ("weights: expected", filled.sample, {"batch_size": 1, "weights": [1.0]}),
        ("seed and generator", filled.sample, {"batch_size": 1, "seed": 1, "generator": 2}),
        ("n_step and gamma", filled.sample, {"batch_size": 1, "n_step": 2}),
        ("batch_size: expected at least 1", filled.loader, {"batch_size": 0}),
        ("prefetch: expected at least 0", filled.loader, {"batch_size": 1, "prefetch": -1}),
        ("none with a sampler", filled.loader, {"batch_size": 1, "shuffle": True, "sampler": []}),
    ]:
        refused_with(said, call, **options)
    with pytest.raises(TypeError, match="sampler: expected an iterable"):
        filled.loader(1, sampler=5)
    for wrong in (-1, 149, 150, 10**9):
        with pytest.raises(IndexError, match=f"position {wrong}: expected that of a live frame"):
            filled.get_batch([0, wrong])
    with pytest.raises(TypeError, match="index: expected"):
        filled.get_batch(["a"])
    before = len(filled)
    refused_with("0 for the first", filled.add_data, episodes([2, 3]) | {"index": np.arange(5) + 1})
    assert len(filled) == before
