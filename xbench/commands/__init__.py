"""One file a command: parse, call the library, render. `xbench.cli` names them and imports each on first use."""
