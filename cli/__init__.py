"""The command line `noria`."""

from noria.cli.entry import main

__all__ = ["main"]
