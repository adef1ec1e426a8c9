"""Shell completion by click's own classes."""

from __future__ import annotations

import os
import subprocess
import sys


def test_tab_imports_no_torch() -> None:
    code = "import sys; from xbench.cli import main\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
    typed = {"_XBENCH_COMPLETE": "bash_complete", "COMP_WORDS": "xbench compare --de", "COMP_CWORD": "2"}
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, **typed}, capture_output=True, text=True)
    assert "plain,--device" in ran.stdout.split()
    assert "AssertionError" not in ran.stderr
