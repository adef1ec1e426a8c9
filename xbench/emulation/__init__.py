"""Emulation of a link: real computation on this device, and collectives that take the time of a cost model.

`lane` is the arithmetic of the link, `pacer` the thread that completes collectives in time, `group` the process group
that schedules see, `calibration` the measured error. `xbench.fabrics.emulated` is the fabric that uses it.
"""
