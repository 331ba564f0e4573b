"""Version of the package, in a module without imports, so that every room can write it into its files."""

__version__ = "0.3.0"
