"""The commands of ``fastbuffer``. But for NumPy, each imports what it needs only when it is run."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fastbuffer.synthetic.tasks import TASKS

if TYPE_CHECKING:
    from fastbuffer import OnlineBuffer

_SECONDS = click.FloatRange(min=0, min_open=True, max=3600)
_REFUSALS = (ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def _a_number(_: click.Context, option: click.Parameter, value: float) -> float:
    if math.isnan(value):  # which is in every range
        raise click.BadParameter("nan is no number", param=option)
    return value


@click.group()
@click.version_option(package_name="fastbuffer")
def cli() -> None:
    """Circular, memory-mapped episode buffers for robot learning."""


@cli.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep dataset and buffer in DIR, new or empty.  [default: a temporary directory]",
)
@click.option(
    "--picture",
    metavar="PNG",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("fastbuffer-demo.png"),
    show_default=True,
    help="Where the picture goes.",
)
@click.option(
    "--seconds",
    metavar="S",
    type=_SECONDS,
    callback=_a_number,
    default=8.0,
    show_default=True,
    help="Seconds of fitting.",
)
@click.option(
    "--episodes",
    metavar="N",
    type=click.IntRange(min=4),
    default=500,
    show_default=True,
    help="Episodes of the dataset.",
)
@click.option(
    "--seed",
    metavar="K",
    type=click.IntRange(min=0, max=2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the dataset, the sampling and the policy.",
)
def demo(directory: Path | None, picture: Path, seconds: float, episodes: int, seed: int) -> None:
    """Make a synthetic dataset, read it through a buffer and clone its expert.

    An agent goes around one of two circles. What is stored, the shapes of the batches, the speed of
    sampling and the policy's error are printed; a picture shows the paths of expert and policy.
    """
    try:
        from fastbuffer.demo import run
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"{directory} is not empty", param_hint="--dir")
    if not picture.absolute().parent.is_dir():
        got = picture.absolute().parent
        raise click.BadParameter(f"there is no directory {got}", param_hint="--picture")
    run(directory, picture, seconds=seconds, episodes=episodes, seed=seed)


#: What the parameters of a dataset are called on the command line.
_OPTIONS = {
    "zarr_path": "OUT.zarr",
    "num_episodes": "--episodes",
    "image_size": "--image-size",
    "num_modes": "--modes",
    "num_styles": "--styles",
    "trajectory_length": "--length",
    "noise_std": "--noise",
    "mode_weights": "--weight",
    "image_frames_per_shard": "--shard",
}


@cli.command()
@click.argument("task", type=click.Choice(list(TASKS)))
@click.argument("out", metavar="OUT.zarr", type=click.Path(path_type=Path))
@click.option("--episodes", metavar="N", default=1000, show_default=True, help="Episodes.")
@click.option("--seed", metavar="K", default=42, show_default=True, help="Seed.")
@click.option(
    "--image-size", metavar="PIXELS", default=64, show_default=True, help="Height and width."
)
@click.option(
    "--modes",
    metavar="N",
    default=2,
    show_default=True,
    help="Directions; an even number of gaps.",
)
@click.option("--styles", metavar="N", default=1, show_default=True, help="Ways through each gap.")
@click.option("--length", metavar="T", default=60, show_default=True, help="Frames per episode.")
@click.option("--noise", metavar="STD", default=0.01, show_default=True, help="Noise on positions.")
@click.option(
    "--weight",
    "weights",
    metavar="W",
    type=float,
    multiple=True,
    help="Share of a mode, relative to the others; once per mode.",
)
@click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="An array to write.  [default: all]"
)
@click.option(
    "--shard",
    metavar="FRAMES",
    default=256,
    show_default=True,
    help="Frames per shard of the images; 0 for chunks without shards.",
)
def synth(
    task: str,
    out: Path,
    episodes: int,
    seed: int,
    image_size: int,
    modes: int,
    styles: int,
    length: int,
    noise: float,
    weights: tuple[float, ...],
    keys: tuple[str, ...],
    shard: int,
) -> None:
    """Make a synthetic dataset of TASK as a Zarr store, with a picture of its trajectories.

    A store that is there is replaced once the new one is complete.
    """
    from fastbuffer import SyntheticSchema

    try:
        from fastbuffer.synthetic.dataset import create_replay_buffer_from_synthetic, picture_path

        schema = SyntheticSchema(
            out,
            task_name=task,
            num_episodes=episodes,
            seed=seed,
            image_size=image_size,
            num_modes=modes,
            trajectory_length=length,
            noise_std=noise,
            num_styles=styles,
            mode_weights=weights or None,
            keys=keys or None,
        )
        create_replay_buffer_from_synthetic(schema, shard or None)
    except _REFUSALS as error:
        names = r"\b(" + "|".join(_OPTIONS) + r")\b"
        said = re.sub(names, lambda name: _OPTIONS[name[0]], str(error))
        raise click.ClickException(said) from error
    click.echo(f"{out}: {episodes:,} episodes of {length} frames")
    click.echo(picture_path(out.absolute()))


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON object.")
def info(directory: Path, as_json: bool) -> None:
    """Say what the buffer in DIR is and holds, without changing anything."""
    import json

    from fastbuffer.inspection import facts

    known = facts(_opened(directory))
    if as_json:
        click.echo(json.dumps(known))
        return
    writer = known["writer"]
    click.echo(f"{known['write_dir']}: {known['frames']:,} of {known['capacity']:,} frames")
    click.echo(f"episodes  {known['episodes']:,}")
    click.echo(f"fps       {known['fps'] or 'unknown'}")
    click.echo(f"bytes     {known['bytes']:,}")
    if known["fps"] is not None:
        rate, seconds = known["bytes_per_second"], known["seconds"]
        click.echo(f"rate      {rate:,.0f} bytes per second, of which {seconds:,.0f} seconds fit")
    click.echo(f"writer    {'none' if writer is None else f'process {writer}'}")
    for key, entry in known["schema"].items():
        shape = tuple(entry["shape"])
        click.echo(f"  {key}: {entry['dtype']} {shape}, {entry['bytes']:,} bytes per frame")


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "picture",
    metavar="PNG",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where the picture goes.",
)
def plot(directory: Path, picture: Path) -> None:
    """Draw the slots, episodes, ranges and some images of the buffer in DIR."""
    buffer = _opened(directory)
    try:
        from fastbuffer.plotting import plot as draw

        draw(buffer, picture)
    except _REFUSALS as error:
        raise click.ClickException(str(error)) from error
    click.echo(picture)


@cli.command("import")
@click.argument("store", metavar="IN.zarr", type=click.Path(path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--fps", type=float, help="Frames per second; needed for windows.")
@click.option("--capacity", type=int, help="Frames that the buffer holds.  [default: as many]")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="An array.  [default: all]")
def import_(
    store: Path, directory: Path, fps: float | None, capacity: int | None, keys: tuple[str, ...]
) -> None:
    """Make a buffer in DIR, new or empty, of a Zarr store."""
    from fastbuffer import OnlineBuffer

    try:
        buffer = OnlineBuffer.from_zarr(
            store, directory, fps=fps, keys=keys or None, buffer_capacity=capacity, output="numpy"
        )
    except _REFUSALS as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{directory}: {buffer.num_frames:,} frames in {buffer.num_episodes:,} episodes")


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("store", metavar="OUT.zarr", type=click.Path(path_type=Path))
@click.option(
    "--partial",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="What becomes of an oldest episode that has lost frames.",
)
def export(directory: Path, store: Path, partial: Literal["keep", "drop"]) -> None:
    """Write the episodes of the buffer in DIR as a Zarr store.

    A store that is there is replaced once the new one is complete.
    """
    buffer = _opened(directory)
    try:
        buffer.to_zarr(store, partial=partial)
    except _REFUSALS as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{store}: {buffer.num_frames:,} frames in {buffer.num_episodes:,} episodes")


def _opened(directory: Path) -> "OnlineBuffer":
    """The buffer in a directory, for reading."""
    from fastbuffer import OnlineBuffer

    try:
        return OnlineBuffer(directory, mode="r", output="numpy")
    except _REFUSALS as error:
        raise click.ClickException(str(error)) from error


@cli.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The disk to measure on, by a directory there.  [default: that of temporary files]",
)
@click.option(
    "--seconds",
    metavar="S",
    type=_SECONDS,
    callback=_a_number,
    default=30.0,
    show_default=True,
    help="About how long it takes; shorter ones use smaller buffers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON list.")
def bench(directory: Path | None, seconds: float, as_json: bool) -> None:
    """Measure this machine: windows, items and inserts, by fastbuffer and by NumPy.

    Each pair is measured in turns, with the answers of both compared before. Buffers of up to half
    a GB are made for it, and removed.
    """
    import dataclasses
    import json

    from fastbuffer._progress import progress
    from fastbuffer.benchmark.comparisons import COMPARISONS, compare

    line = "{:<33} {:<14} {:>10} {:>13} {:>13} {:>7}".format
    if not as_json:
        click.echo(line("what", "NumPy", "frames", "fastbuffer us", "NumPy us", "times"))
    results = []
    with progress(len(COMPARISONS), "measuring", " pairs") as bar:
        for comparison in COMPARISONS:
            try:
                result = compare(comparison, directory, seconds / len(COMPARISONS))
            except _REFUSALS as error:
                raise click.ClickException(str(error)) from error
            bar.update(1)
            results.append(dataclasses.asdict(result))
            times = (f"{s * 1e6:,.1f}" for s in (result.fastbuffer_seconds, result.numpy_seconds))
            if not as_json:
                ratio = f"{result.ratio:,.1f}"
                click.echo(line(result.name, result.against, f"{result.frames:,}", *times, ratio))
    if as_json:
        click.echo(json.dumps(results))


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--repair",
    is_flag=True,
    help="Rebuild what the columns determine, and say what was dropped.",
)
@click.pass_context
def verify(context: click.Context, directory: Path, repair: bool) -> None:
    """Check the files of a buffer against each other, and print each finding.

    Exits with 0 if the buffer is sound, or is after its repair, with 1 if it is damaged, and with 2
    if DIR holds no buffer.
    """
    from fastbuffer import verification

    try:
        findings = verification.verify(directory)
        for finding in findings:
            click.echo(finding)
        if findings and repair:
            for done in verification.repair(directory):
                click.echo(f"repaired: {done}")
            findings = verification.verify(directory)
    except FileNotFoundError as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(2)
    except (OSError, ValueError, RuntimeError) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(1)
    if not findings:
        click.echo(f"{directory}: no damage found")
    context.exit(1 if findings else 0)
