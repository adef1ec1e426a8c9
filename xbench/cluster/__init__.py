"""Many jobs, one cluster: which jobs run, on how many GPUs each, and when it pays to stop and restart one.

| file | what it holds |
| --- | --- |
| `jobs` | a job and its speed on w GPUs |

Nothing here imports torch.
"""
