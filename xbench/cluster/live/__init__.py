"""Real jobs on real slots, under the policies that the simulator runs: `xbench cluster run` and `restart`."""
