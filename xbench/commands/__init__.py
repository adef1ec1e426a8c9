"""One file per command: parse, call the library, render. `xbench.cli` imports each file on first use."""
