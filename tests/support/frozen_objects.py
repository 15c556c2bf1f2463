"""Imported last by the server of the table of uses: see `support.uses.start_server`."""

import gc

# A collection of garbage in a forked process would otherwise visit, and so copy, all objects.
gc.collect()
gc.freeze()
