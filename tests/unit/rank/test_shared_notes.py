"""Notes that ranks leave for each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from xbench.rank.shared_notes import FileStore

PUT_OFTEN = """
import sys
from pathlib import Path
from xbench.rank.shared_notes import FileStore
for _ in range(500):
    FileStore(Path(sys.argv[1])).put("refused", "yes")
"""


def test_several_processes_may_put_the_same_note_at_once(tmp_path: Path) -> None:
    ranks = [subprocess.Popen([sys.executable, "-c", PUT_OFTEN, str(tmp_path)]) for _ in range(3)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["refused"]
    assert FileStore(tmp_path).get("refused") == "yes"
    assert not FileStore(tmp_path).has("agreed")
