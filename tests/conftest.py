"""Property tests without a stopwatch, since a loaded machine is no failure, and with the same examples in every run.

``pytest --hypothesis-profile exploring`` looks for new ones; what it finds becomes an ``@example``.
"""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")
