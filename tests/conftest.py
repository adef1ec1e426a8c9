"""How property tests draw their examples: alike every time, or anew and more of them to look for trouble.

`HYPOTHESIS_PROFILE=explore make test` draws anew. Neither profile has a deadline: no test judges a time.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
