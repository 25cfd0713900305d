"""Importing the package is cheap, and its names are all there."""

from importlib.metadata import version

import pytest

import fastbuffer
from helpers import run_python


def test_importing_the_package_loads_neither_torch_nor_zarr():
    code = "import fastbuffer, sys; print(sorted({'torch', 'zarr'} & set(sys.modules)))"
    assert run_python(code).strip() == "[]"


def test_all_names_are_there_and_no_others():
    for name in fastbuffer.__all__:
        assert getattr(fastbuffer, name).__name__ == name
        assert name in dir(fastbuffer)
    assert fastbuffer.__version__ == version("fastbuffer")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fastbuffer.Nothing
