"""What each command does, as functions with plain arguments; the command line (`trajformer.cli`) calls them.

Imports are local where they are slow, so that `trajformer --help` answers at once, and where a package is optional.
"""
