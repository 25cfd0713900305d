"""Files that were cut, swapped or scribbled on give a clear error at open, and never a crash."""

import json
import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import (
    SPEC,
    Pair,
    assert_equal,
    check_columns,
    make_episodes,
    run_python,
    snapshot,
    start_python,
)

CAPACITY = 12
ARGUMENTS = (SPEC, CAPACITY, 10)

pytestmark = pytest.mark.timeout(60)  # opening a FIFO must not wait for its other end


@pytest.fixture
def pair(tmp_path, rng):
    """A wrapped buffer that has been closed, and its model."""
    pair = Pair(tmp_path, *ARGUMENTS)
    for lengths in ([7], [4, 6]):
        pair.add(make_episodes(lengths, SPEC, rng))
    pair.buffer.close()
    return pair


def edit(change):
    """Replace a file's bytes by what `change` makes of them."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def replace(make):
    """Put something else where the file was."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def link_elsewhere(path):
    target = path.parent.parent / f"{path.parent.name}-elsewhere"
    path.rename(target)
    path.symlink_to(target)


HALVED = edit(lambda content: content[: len(content) // 2])
COLUMN = {
    "halved": HALVED,
    "a byte short": edit(lambda content: content[:-1]),
    "empty": edit(lambda content: b""),
    "too long": edit(lambda content: content + b"x"),
    "missing": Path.unlink,
    "symlink": link_elsewhere,
    "dangling symlink": replace(lambda path: path.symlink_to("nowhere")),
    "FIFO": replace(os.mkfifo),
    "directory": replace(Path.mkdir),
}
STATE = COLUMN | {
    "zeros": edit(lambda content: bytes(len(content))),
    "ones": edit(lambda content: b"\xff" * len(content)),
    "random": edit(lambda content: np.random.default_rng(0).bytes(len(content))),
}
MANIFEST = {
    "halved": HALVED,
    "empty": edit(lambda content: b""),
    "trailing": edit(lambda content: content + b"x"),
    "no UTF-8": edit(lambda content: b"\xff" + content),
    "zeros": edit(lambda content: bytes(len(content))),
    "a list": edit(lambda content: b"[1]"),
    "no fields": edit(lambda content: b"{}"),
    "nested": edit(lambda content: b"[" * 200_000),
    "FIFO": replace(os.mkfifo),
    "directory": replace(Path.mkdir),
}
DAMAGE = [
    pytest.param(name, damage, id=f"{name} {kind}")
    for name, kinds in [("image", COLUMN), ("index", COLUMN), ("_state", STATE)]
    for kind, damage in kinds.items()
] + [
    pytest.param("_manifest.json", damage, id=f"_manifest.json {kind}")
    for kind, damage in MANIFEST.items()
]


@pytest.mark.parametrize("arguments", [(), ARGUMENTS], ids=["alone", "with arguments"])
@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_a_damaged_file_is_named(pair, tmp_path, name, damage, arguments):
    damage(tmp_path / name)
    before = {key: content for key, content in snapshot(tmp_path).items() if key != "_lock"}
    with pytest.raises((OSError, ValueError), match=name):
        OnlineBuffer(tmp_path, *arguments)
    assert {k: content for k, content in snapshot(tmp_path).items() if k != "_lock"} == before


def test_a_halved_column_is_reported_with_both_sizes(pair, tmp_path):
    HALVED(tmp_path / "image")
    with pytest.raises((OSError, ValueError), match=r"image.*\b720\b.*\b360\b"):
        OnlineBuffer(tmp_path)


def test_an_unknown_version_is_reported(pair, tmp_path):
    path = tmp_path / "_manifest.json"
    manifest = json.loads(path.read_text())
    version = next(key for key in manifest if "version" in key)
    for unknown in (0, 999):
        path.write_text(json.dumps(manifest | {version: unknown}))
        with pytest.raises((OSError, ValueError), match=rf"_manifest\.json.*version.*{unknown}"):
            OnlineBuffer(tmp_path)


def leaves(node, path=()):
    """The path to everything in a JSON document, containers included."""
    yield path
    children = node.items() if isinstance(node, dict) else ()
    children = enumerate(node) if isinstance(node, list) else children
    for step, child in children:
        yield from leaves(child, (*path, step))


def replaced(node, path, value):
    """A copy of a JSON document with the part at `path` replaced; None removes it."""
    if not path:
        return value
    copied = node.copy()
    copied[path[0]] = replaced(node[path[0]], path[1:], value)
    return copied


WRONG = [None, True, "x", "", -1, 0, 1.5, 1e308, 2**31, 2**63, 2**64, 10**30, [], {}, [-1], ["x"]]


def test_any_wrong_value_in_the_manifest_is_refused_or_harmless(pair, tmp_path):
    path = tmp_path / "_manifest.json"
    manifest = json.loads(path.read_text())
    names = "|".join(["_manifest.json", *pair.model.columns])
    refused = 0
    for part in leaves(manifest):
        for wrong in WRONG:
            path.write_text(json.dumps(replaced(manifest, part, wrong)))
            refused += not opens_unharmed(pair.model, tmp_path, names)
    assert refused > 100


def opens_unharmed(model, directory, names):
    """Whether the directory opens; then no frame in it may be other than the model's."""
    try:
        with OnlineBuffer(directory, output="numpy") as buffer:
            check_subset(buffer, model)
    except (OSError, ValueError) as error:
        if re.search(names, str(error)):
            return False
        raise
    return True


def check_subset(buffer, model):
    """Each frame of the buffer is one of the model's live frames, bit for bit."""
    frames = {int(frame["index"]): frame for frame in model.live}
    for i in range(len(buffer)):
        item = buffer[i]
        frame = frames[int(item["index"])]
        assert_equal(item, {key: frame[key] for key in item})


def test_any_flipped_byte_in_the_state_is_refused_or_harmless(pair, tmp_path):
    path = tmp_path / "_state"
    content = path.read_bytes()
    refused = 0
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        refused += not opens_unharmed(pair.model, tmp_path, "_state")
    assert refused > 0


def test_the_lock_file_may_be_missing(pair, tmp_path, rng):
    (tmp_path / "_lock").unlink()
    pair.buffer = OnlineBuffer(tmp_path, output="numpy")
    pair.check()
    pair.add(make_episodes([3], SPEC, rng))
    pair.check()


# Disks that are full, and creation that was cut short

FULL_DISK = """
import resource, sys
from fastbuffer import OnlineBuffer

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
spec = {key: {"shape": (8, 1024), "dtype": "u1"} for key in "abc"}
try:
    OnlineBuffer(sys.argv[1], spec, 1024)
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
@pytest.mark.parametrize("exists", [False, True])
def test_a_disk_without_room_is_an_error_at_creation_and_leaves_no_files(tmp_path, exists):
    directory = tmp_path / "deeper" / "buffer"
    if exists:
        directory.mkdir(parents=True)
    before = snapshot(tmp_path)
    message = run_python(FULL_DISK, directory)
    assert str(directory / "a") in message
    assert snapshot(tmp_path) == before
    Pair(directory, *ARGUMENTS).check()


def test_space_is_reserved_unless_it_is_opted_out_of(tmp_path):
    spec = {"image": {"shape": (1 << 20,), "dtype": np.uint8}}
    for name, preallocate in [("real", True), ("sparse", False)]:
        OnlineBuffer(tmp_path / name, spec, 4, preallocate=preallocate).close()
    sizes = {name: (tmp_path / name / "image").stat() for name in ("real", "sparse")}
    assert sizes["real"].st_size == sizes["sparse"].st_size == 4 << 20
    assert sizes["real"].st_blocks * 512 >= 4 << 20 > sizes["sparse"].st_blocks * 512


# A file above its limit kills a process that does not ignore the signal, as Python does.
KILLED_CREATION = """
import resource, signal, sys
from fastbuffer import OnlineBuffer

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
spec = {key: {"shape": (8,), "dtype": "u1"} for key in "abcxyz"}
spec[sys.argv[2]] = {"shape": (8, 1024), "dtype": "u1"}
OnlineBuffer(sys.argv[1], spec, 1024)
"""


@pytest.mark.parametrize("largest", ["a", "c", "z"])
def test_a_killed_creation_is_made_anew(tmp_path, rng, largest):
    directory = tmp_path / "buffer"
    with start_python(KILLED_CREATION, directory, largest) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGXFSZ
    half_made = {path.name for path in directory.iterdir()}
    assert largest in half_made
    assert "_manifest.json" not in half_made
    pair = Pair(directory, *ARGUMENTS)
    pair.add(make_episodes([2], SPEC, rng))
    pair.check()
    assert not half_made & {"a", "c", "z"} & {path.name for path in directory.iterdir()}


def test_a_killed_creation_is_no_buffer(tmp_path):
    with start_python(KILLED_CREATION, tmp_path, "c") as process:
        process.communicate(timeout=60)
    with pytest.raises(ValueError, match="data_spec"):
        OnlineBuffer(tmp_path)


# Names that the buffer needs, taken by something else

OTHERS = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.parent / "nothing"),
    "FIFO": lambda path, victim: os.mkfifo(path),
    "directory": lambda path, victim: path.mkdir(),
}
REPLACED = {
    True: {"_state", "_state.new", "_manifest.json.new"},
    False: {"_state.new", "_manifest.json.new"},
}
NAMES = ["_manifest.json", "_manifest.json.creating", "_manifest.json.new", "_state", "_state.new"]


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_the_way_of_a_new_buffer_is_refused_or_replaced(tmp_path, name, kind, adopted):
    """Never followed, waited for or taken for a file."""
    directory, victim = tmp_path / "b", tmp_path / "victim"
    OnlineBuffer(directory, *ARGUMENTS).close()
    for path in directory.iterdir():
        if path.name in [*NAMES, "_lock"] or not adopted:
            path.unlink()
    victim.write_text("precious")
    OTHERS[kind](directory / name, victim)
    before = snapshot(directory)
    try:
        Pair(directory, *ARGUMENTS).check()
    except (ValueError, OSError) as error:
        refused = str(error)
    else:
        refused = None
    # Without files to adopt, a directory of that name is never touched.
    is_replaced = name in REPLACED[adopted] and not (adopted and kind == "directory")
    assert (refused is None) == is_replaced
    if refused:
        assert str(directory / name) in refused
        assert snapshot(directory) == before
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_files_that_were_there_are_not_taken_for_half_made_ones(tmp_path):
    (tmp_path / "reward").write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="reward"):
        OnlineBuffer(tmp_path, *ARGUMENTS)
    assert snapshot(tmp_path) == before


def test_a_buffer_without_its_manifest_is_not_adopted(pair, tmp_path):
    """Its state may say that the newest frames are half written, which the mask does not."""
    (tmp_path / "_manifest.json").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"_manifest.json: is missing, but _state is there"):
        OnlineBuffer(tmp_path, *ARGUMENTS)
    assert snapshot(tmp_path) == {key: before[key] for key in before if key != "_lock"}
    (tmp_path / "_state").unlink()
    check_columns(OnlineBuffer(tmp_path, *ARGUMENTS, output="numpy"), pair.model)
