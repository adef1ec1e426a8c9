"""Real jobs on real slots, under the policies of the simulator: `xbench cluster run`.

`run` begins or resumes a run: `controller` is its event loop, `ledger` its log, and `state` what the log implies;
`local_engine` and `ray_engine` start attempts (`attempt`) of `job_rank`, and `outcome` makes the record.
"""
