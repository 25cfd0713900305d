"""Entry point of the ``fastbuffer`` command; `python -m fastbuffer` is the same."""

import sys

from fastbuffer._optional import require


def main() -> None:
    """Run the command line, or say in one line what it needs to run."""
    try:
        require("click", extra="cli", purpose="the fastbuffer command")
    except ImportError as error:
        sys.exit(f"Error: {error}")
    from fastbuffer.cli import cli

    cli(prog_name="fastbuffer")


if __name__ == "__main__":
    main()
