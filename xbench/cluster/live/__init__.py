"""Real jobs on real slots, under the policies of the simulator: `xbench cluster run`.

| file | content |
| --- | --- |
| `controller`, `ledger`, `state`, `track` | event loop, its log, and the state that the log implies |
| `attempt` | one attempt: its instructions, its files, its progress, and the interface to engines |
| `local_engine`, `ray_engine`, `ray_attempt` | engines: this machine, and a Ray cluster |
| `job_rank` | program of one worker (imports torch) |
| `checkpoints`, `samples` | checkpoints that are whole or are skipped; the samples of a step (imports torch) |
| `restart`, `restart_result` | cost of stopping and restarting a real job |
| `run`, `outcome` | `cluster run`, and its record, of killed runs too |
"""
