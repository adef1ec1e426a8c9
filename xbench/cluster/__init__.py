"""Scheduling many jobs on one cluster: which jobs run, on how many GPUs, and when a restart pays.

| file | content |
| --- | --- |
| `jobs` | a job and its speed on w GPUs, also on several hosts |
| `policy`, `policies/` | the policy interface; the policies by name, a file a family |
| `simulator` | event-by-event simulation of a trace under a policy |
| `placement` | the hosts of a job's GPUs, and the rings that share a link |
| `metrics` | results of a simulation and their statistics |
| `speeds` | speeds from a table, a ring model or a scaling record, and parts of a step |
| `traces/` | sources of jobs: public traces, a CSV, a generator |
| `bounds` | a limit that no policy can beat |
| `compare`, `findings` | several policies on one trace, and the conclusions |

Nothing here imports torch.
"""
