"""The version of xbench, for the distribution, every record and every script: this file alone says it."""

__version__ = "0.1.0"
