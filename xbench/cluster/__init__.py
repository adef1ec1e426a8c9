"""Scheduling many jobs on one cluster: which jobs run, on how many GPUs, and when a restart pays.

| file | content |
| --- | --- |
| `jobs` | a job and its speed on w GPUs |
| `policy`, `policies/` | the policy interface; one file a policy |
| `registry` | the policies by name, with their options |
| `simulator` | event-by-event simulation of a trace under a policy |
| `placement` | the hosts of a job's GPUs, and the rings that share a link |
| `hosts` | a job's speed on GPUs of several hosts |
| `metrics` | statistics of a simulation |
| `speeds` | speeds from a table, a ring model or a scaling record |
| `loss_curve` | steps that remain until a loss |
| `traces/` | sources of jobs: public traces, a CSV, a generator; downloads |
| `bounds` | limits that no policy can beat |
| `compare`, `findings` | several policies on one trace, and the conclusions |

Nothing here imports torch.
"""
