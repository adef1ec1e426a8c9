"""Scheduling many jobs on one cluster: which jobs run, on how many GPUs, and when a restart pays.

`traces/` makes jobs (`jobs`, `speeds`), `simulator` runs them under a policy (`policy`, `policies/`) on hosts
(`placement`), `metrics` judges the result and `bounds` limits it, `compare` does so for several policies, and `live/`
runs real jobs. Nothing but `live.job_rank` imports torch.
"""
