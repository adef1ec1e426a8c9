"""The policies, one file each; `registry` knows them by name."""
