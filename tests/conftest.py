"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more about the machine than about us.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")
