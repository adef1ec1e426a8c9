"""Many jobs, one cluster: which jobs run, on how many GPUs each, and when it pays to stop and restart one.

| file | what it holds |
| --- | --- |
| `jobs` | a job and its speed on w GPUs |
| `policy`, `policies/` | what decides, one file a policy |
| `registry` | the policies by name, with their options |
| `simulator` | a trace under a policy, event by event |
| `placement` | which hosts a job's GPUs are on, and whose rings share a link |
| `hosts` | how fast a job is on GPUs of several hosts |
| `metrics` | what comes of it |
| `speeds` | speeds from a table, a model of a ring, or a scaling record |
| `loss_curve` | how many steps are left until a loss |
| `traces/` | where jobs come from: public traces, a CSV, a generator; what to fetch |
| `bounds` | how well any policy could have done |
| `compare`, `findings` | several policies on one trace, and what that says |

Nothing here imports torch.
"""
