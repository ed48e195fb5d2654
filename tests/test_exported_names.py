"""Names that `import strop` exports: few, each documented, without an import of torch."""

import inspect
import subprocess
import sys

import strop


def test_the_exported_names_are_these():
    assert strop.__all__ == [
        "Callback",
        "Interrupted",
        "RunControl",
        "RunHandle",
        "RunResult",
        "StropError",
        "__version__",
        "evaluate",
        "export",
        "generate",
        "load",
        "start",
        "train",
    ]


def test_each_exported_name_is_there_and_documented():
    for name in strop.__all__:
        thing = getattr(strop, name)
        assert isinstance(thing, str) or inspect.getdoc(thing), name


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert strop.__version__ == version("strop")


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(strop, "trian")


def test_importing_strop_does_not_import_torch():
    code = "import sys, strop; strop.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
