"""The first call into torch takes longer than hypothesis likes."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
