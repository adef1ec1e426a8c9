"""Live clusters: real jobs on real slots, under the simulator's policies (`xbench cluster run` and `restart`)."""
