"""The REST API: HTTP around `server.service`, one file for each group of routes.

`app.py` puts it together, `gate.py` stands before everything, `problems.py` has the form of every error, `streams.py`
what stays connected. Routes hold no rules of their own: they read, ask the service, and write.
"""

from fairlead.server.api.app import make_app
from fairlead.server.api.settings import Settings

__all__ = ["Settings", "make_app"]
