"""The commands of ``fastbuffer``. Each imports what it needs only when it is run."""

import math
from pathlib import Path

import click


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
    help="Keep the buffers in DIR, new or empty.  [default: a temporary directory]",
)
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    callback=_a_number,
    default=4.0,
    show_default=True,
    help="Seconds of fitting per policy.",
)
@click.option(
    "--episodes",
    metavar="N",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    help="Episodes to record per environment.",
)
@click.option(
    "--seed",
    metavar="K",
    type=click.IntRange(min=0, max=2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the environments, the sampling and the policies.",
)
def demo(directory: Path | None, seconds: float, episodes: int, seed: int) -> None:
    """Record rollouts, reopen the buffers and clone the experts' behaviour.

    Pendulum-v1 is stored as states, CartPole-v1 as 96x96 RGB frames. What is stored, the shapes
    of the batches and the speed of inserting and sampling are printed.
    """
    try:
        from fastbuffer.demo import run
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"{directory} is not empty", param_hint="--dir")
    run(directory, seconds=seconds, episodes=episodes, seed=seed)


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
        is_buffer = any((directory / name).exists() for name in ("_manifest.json", "_state"))
        context.exit(1 if is_buffer else 2)
    except (OSError, ValueError, RuntimeError) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(1)
    if not findings:
        click.echo(f"{directory}: no damage found")
    context.exit(1 if findings else 0)
