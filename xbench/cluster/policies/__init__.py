"""The policies, one file each; `xbench.cluster.registry` knows them by name."""
