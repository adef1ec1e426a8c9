"""Commands, with related ones in one file: parse, call the library, render. `xbench.cli` imports a file when used."""
