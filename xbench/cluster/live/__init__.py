"""Real jobs on real slots, under the policies of the simulator: `xbench cluster run` and `xbench cluster restart`.

| file | content |
| --- | --- |
| `controller`, `ledger`, `state`, `track` | event loop, its log, and the state that the log implies |
| `attempt_output` | events and progress of an attempt, from its journal |
| `engine` | interface between the controller and an engine |
| `local_engine`, `ray_engine`, `ray_attempt` | engines: this machine, and a Ray cluster |
| `attempt` | instructions for the ranks of one attempt, and the files of a job's folder |
| `job_rank` | program of one worker (imports torch) |
| `checkpoints`, `samples` | checkpoints that are whole or are skipped; the samples of a step (imports torch) |
| `restart`, `restart_result` | cost of stopping and restarting a real job |
| `run`, `outcome`, `rebuild` | `cluster run`, its record, and the records of killed runs |
"""
