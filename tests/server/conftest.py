from __future__ import annotations

from hypothesis import settings

# The same examples in every run, and no time limit on one: the machine may be busy.
settings.register_profile("server", deadline=None, derandomize=True)
settings.load_profile("server")
