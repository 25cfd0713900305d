"""DataLoaders over a buffer: the buffer's own, and torch's as users write it."""

import multiprocessing
import zlib

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from fastbuffer._batches import packed
from helpers import SPEC, assert_equal, make_episodes, refused_with

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

DELTAS = {"image": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}
METHODS = [{}, *({"num_workers": 2, "multiprocessing_context": m} for m in ("fork", "spawn"))]


@pytest.fixture
def buffer(tmp_path):
    """A buffer that has wrapped, with windows."""
    buffer = OnlineBuffer(tmp_path, SPEC, 50, 10, DELTAS, output="torch")
    buffer.add_data(make_episodes([40, 30], SPEC, np.random.default_rng(0)))
    return buffer


def check(loader, buffer, batches):
    """The loader yields those batches, as tensors of their own."""
    got = list(loader)
    assert len(got) == len(batches) == len(loader)
    for batch, positions in zip(got, batches, strict=True):
        assert type(batch) is dict
        assert all(isinstance(value, torch.Tensor) for value in batch.values())
        expected = buffer.get_batch(positions)
        assert_equal(batch, expected)
        for value in batch.values():
            value.view(torch.uint8)[...] = 1  # what one batch holds is nobody else's


@pytest.mark.parametrize("options", METHODS, ids=["here", "fork", "spawn"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_in_order(buffer, options, drop_last):
    batches = [range(i, min(i + 16, 50)) for i in range(0, 50, 16)][: 3 if drop_last else 4]
    check(buffer.loader(16, drop_last=drop_last, **options), buffer, batches)


@pytest.mark.parametrize("options", METHODS, ids=["here", "fork", "spawn"])
def test_shuffled_as_torch_does_with_the_same_generator(buffer, options):
    def seeded():
        return {"generator": torch.Generator().manual_seed(3), **options}

    ours = list(buffer.loader(16, shuffle=True, **seeded()))
    theirs = list(DataLoader(buffer, 16, shuffle=True, **seeded()))
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)
    assert sorted(torch.cat([batch["index"] for batch in ours]).tolist()) == list(range(20, 70))


@pytest.mark.parametrize("options", METHODS, ids=["here", "fork", "spawn"])
def test_a_plain_dataloader_yields_what_items_do(buffer, options):
    class ItemByItem(torch.utils.data.Dataset):
        def __len__(self):
            return len(buffer)

        def __getitem__(self, i):
            return buffer[i]

    expected = list(DataLoader(ItemByItem(), 16))
    for a, b in zip(DataLoader(buffer, 16, **options), expected, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize(
    "sampler",
    [
        SequentialSampler(range(50)),
        SubsetRandomSampler([5, 7, 7, 31]),
        RandomSampler(range(50), replacement=True, num_samples=33),
        WeightedRandomSampler(torch.arange(50.0), 20),
        [3, 2, 1],
        np.arange(0, 50, 5),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_any_sampler_says_which(buffer, sampler):
    torch.manual_seed(0)
    theirs = list(DataLoader(buffer, 8, sampler=sampler))
    torch.manual_seed(0)
    ours = buffer.loader(8, sampler=sampler)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("options", METHODS[1:], ids=["fork", "spawn"])
def test_a_worker_sends_a_batch_as_one_block(buffer, options):
    for batch in buffer.loader(16, collate_fn=None, **options):
        storages = {value.untyped_storage().data_ptr() for value in batch.values()}
        assert len(storages) == 1
        assert all(value.is_shared() for value in batch.values())


@pytest.mark.parametrize("options", METHODS, ids=["here", "fork", "spawn"])
def test_a_collate_function_is_given_the_batch(buffer, options):
    loader = buffer.loader(25, collate_fn=double_actions, **options)
    expected = [double_actions(buffer.get_batch(range(i, i + 25))) for i in (0, 25)]
    for batch, wanted in zip(loader, expected, strict=True):
        assert_equal(batch, wanted)


def double_actions(batch):
    """Replace a value and drop another, as a user may."""
    batch["action"] = batch["action"] * 2
    batch["reversed"] = batch["index"].flip(0)
    del batch["done"]
    return batch


def test_what_is_no_shared_batch_is_not_packed(buffer):
    batch = buffer.get_batch([1, 2])
    assert packed(batch) is batch
    assert packed([1]) == [1]


def test_epochs_cover_the_frames_that_are_live_when_they_begin(buffer):
    loader = buffer.loader(16)
    first = torch.cat([batch["index"] for batch in loader])
    buffer.add_data(make_episodes([20], SPEC, np.random.default_rng(1)))
    second = torch.cat([batch["index"] for batch in loader])
    assert sorted(first.tolist()) == list(range(20, 70))
    assert sorted(second.tolist()) == list(range(40, 90))


def test_workers_follow_a_writer(buffer):
    loader = buffer.loader(
        10, num_workers=2, persistent_workers=True, multiprocessing_context="spawn"
    )
    for number in range(3):
        seen = torch.cat([batch["index"] for batch in loader])
        assert seen.max() == 69 + 10 * number
        buffer.add_data(make_episodes([10], SPEC, np.random.default_rng(1)))


def test_numpy_buffers_have_loaders_too(buffer):
    plain = OnlineBuffer(buffer.write_dir, delta_timestamps=DELTAS, output="numpy")
    for options in METHODS[:2]:
        batches = list(plain.loader(25, **options))
        for batch, start in zip(batches, (0, 25), strict=True):
            assert all(isinstance(value, np.ndarray) for value in batch.values())
            assert_equal(batch, buffer.get_batch(range(start, start + 25)))


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")  # where there is no accelerator to pin for
@pytest.mark.parametrize("options", METHODS[:2], ids=["here", "fork"])
def test_pinned_batches_are_the_same(buffer, options):
    loader = buffer.loader(25, pin_memory=True, **options)
    for batch, start in zip(loader, (0, 25), strict=True):
        assert_equal(batch, buffer.get_batch(range(start, start + 25)))
        assert all(value.is_pinned() == torch.cuda.is_available() for value in batch.values())


def test_bad_arguments_are_refused(buffer):
    refused_with("batch_size: expected at least 1.*got 0", buffer.loader, 0)
    refused_with(
        "shuffle: expected False with a sampler", buffer.loader, 4, shuffle=True, sampler=[1]
    )
    with pytest.raises(TypeError, match="nonsense"):
        buffer.loader(4, nonsense=1)
    with pytest.raises(TypeError, match=r"batch_size: expected an int"):
        buffer.loader(None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_reads_large_batches_after_the_parent_did(tmp_path, method):
    """The parent's threads do not exist in a child: it must neither wait for them nor crash."""
    spec = {"image": {"shape": (96, 96, 3), "dtype": np.uint8}}
    buffer = OnlineBuffer(tmp_path, spec, 200, 10, {"image": [-0.1, 0.0]}, output="torch")
    buffer.add_data(make_episodes([100, 100], spec, np.random.default_rng(0)))
    expected = buffer.get_batch(range(128))  # 7 MB: shared among threads where there are some
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=read_sums, args=(buffer, queue), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == checksums(expected)
    for options in METHODS[1:]:
        for batch in buffer.loader(128, **options):
            assert_equal(batch, buffer.get_batch(batch["index"]))


def read_sums(buffer, queue):
    """What a child reads."""
    queue.put(checksums(buffer.get_batch(range(128))))


def checksums(batch):
    """Small enough to be sent. Not by torch, whose own threads a forked child waits for in vain."""
    return {key: zlib.crc32(value.numpy().tobytes()) for key, value in batch.items()}


class Labelled(dict):
    """A dict with something of its own, as a user's collate function may return."""

    label = "mine"


def label(batch):
    return Labelled(batch)


def make_parameter(batch):
    return {"x": torch.nn.Parameter(batch["action"])}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("collate", [label, make_parameter])
def test_a_worker_leaves_what_a_collate_function_made_as_it_is(buffer, collate):
    batch = next(iter(buffer.loader(5, num_workers=1, collate_fn=collate)))
    expected = collate(buffer.get_batch(range(5)))
    assert type(batch) is type(expected)
    for key, value in expected.items():
        assert type(batch[key]) is type(value)
        assert torch.equal(batch[key], value)
        assert batch[key].requires_grad == value.requires_grad


def test_flags_are_bools(buffer):
    for name in ("shuffle", "drop_last"):
        with pytest.raises(TypeError, match=f"{name}: expected a bool, got str"):
            buffer.loader(5, **{name: "no"})


class Samples(torch.utils.data.IterableDataset):
    """Frames that each worker draws by itself."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __iter__(self):
        for _ in range(2):
            yield self.buffer.sample(32)["index"]


@pytest.mark.filterwarnings("ignore:.*worker processes in total.*")
def test_workers_draw_different_and_repeatable_samples(buffer):
    buffer.sample(1)  # a generator of this process that forked workers must not go on with

    def draws(seed):
        generator = torch.Generator().manual_seed(seed)
        options = {"num_workers": 4, "multiprocessing_context": "fork", "generator": generator}
        return [tuple(batch.tolist()) for batch in DataLoader(Samples(buffer), None, **options)]

    first = draws(0)
    assert len(set(first)) == 8
    assert draws(0) == first
    assert not set(draws(1)) & set(first)
