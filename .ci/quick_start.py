"""Run the README's first example where nothing but the arguments is installed."""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main(requirements: list[str]) -> None:
    """Install requirements, such as a wheel, run it, and say with what."""
    example = re.search(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)[1]
    says = "import numpy, platform; print(platform.python_version(), 'NumPy', numpy.__version__)"
    requirements = [str(Path(one).resolve()) if "/" in one else one for one in requirements]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        environment = Path(directory) / "venv"
        venv.create(environment, with_pip=True)
        folder, suffix = ("Scripts", ".exe") if os.name == "nt" else ("bin", "")
        python = environment / folder / f"python{suffix}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        code = f"{example}\nbuffer.close()\n{says}"
        subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=directory)


if __name__ == "__main__":
    main(sys.argv[1:])
