"""Start of every Python process of the integration tests: ranks and probes may be forked instead, see `warm_client`."""

import os
import sys

if os.environ.get("XBENCH_TEST_WARM") and "-m" in sys.orig_argv:
    import warm_client

    warm_client.hand_over(os.environ["XBENCH_TEST_WARM"])
