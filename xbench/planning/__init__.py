"""Planning: from measured gradients and a measured link to the fastest schedule, with numpy only.

`step` holds the compute part of a profile. `cost` fits T(bytes), `merge` chooses buckets, and `simulate` puts them on a
timeline. `bounds` gives lower bounds of a step. `plans` makes the plan of each mode, and `scenario` those of a record
with changes. `next_forward` models schedules that still send gradients during the next forward pass. `turns` finds the
turn order of jobs that share a device.
"""
