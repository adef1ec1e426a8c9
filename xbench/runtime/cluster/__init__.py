"""Live training jobs: what one incarnation of a job is, and what launches it.

| file | what it holds |
| --- | --- |
| `incarnation` | what its ranks are told, where things lie in a job's folder, how a batch is shared; no torch |
| `checkpoints` | files that are whole or are skipped; no torch |
| `samples` | which samples a step has, and how they are made |
| `job_rank` | the program of one worker |
| `local` | the engine that launches workers on this machine; no torch |
| `restart` | what stopping and restarting a real job costs; no torch |

The interface that they serve is `xbench.cluster.live.engine`.
"""
