"""Stand-in for torchaudio; see sglang_stub."""

from sglang_stub import make_stub

__version__ = "0"
__getattr__ = make_stub(__name__)
