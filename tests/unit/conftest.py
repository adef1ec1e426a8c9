"""One thread for each worker of these tests."""

from __future__ import annotations

from cores import one_thread

one_thread()
