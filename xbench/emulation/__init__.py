"""An emulated link: real computation on this device, collectives that arrive when a cost model says so.

`lane` is the link as arithmetic, `pacer` the thread that lets collectives arrive in time, `group` the process group
that schedules see, `calibration` what all that is off by. The fabric that asks for it is `xbench.fabrics.emulated`.
"""
