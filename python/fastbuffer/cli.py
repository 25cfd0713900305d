"""The commands of ``fastbuffer``. But for NumPy, each imports what it needs only when it is run."""

import math
import re
from pathlib import Path

import click

from fastbuffer.synthetic.tasks import TASKS


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
    type=click.FloatRange(min=0, min_open=True, max=3600),
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
    except (ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        names = r"\b(" + "|".join(_OPTIONS) + r")\b"
        said = re.sub(names, lambda name: _OPTIONS[name[0]], str(error))
        raise click.ClickException(said) from error
    click.echo(f"{out}: {episodes:,} episodes of {length} frames")
    click.echo(picture_path(out.absolute()))


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
