"""Names that `import strop` exports: few, each documented, without an import of torch."""

import inspect
import subprocess
import sys
from importlib.metadata import version

import strop

CLASSES = ["Callback", "Interrupted", "RunControl", "RunHandle", "RunResult", "StropError"]
OTHERS = ["__version__", "evaluate", "export", "generate", "load", "start", "train"]


def test_the_exported_names_are_these_and_documented():
    assert strop.__all__ == [*CLASSES, *OTHERS]
    for name in strop.__all__:
        thing = getattr(strop, name)
        assert isinstance(thing, str) or inspect.getdoc(thing), name
    assert strop.__version__ == version("strop")
    assert not hasattr(strop, "trian"), "an unknown name is an AttributeError"


def test_importing_strop_does_not_import_torch():
    code = "import sys, strop; strop.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
