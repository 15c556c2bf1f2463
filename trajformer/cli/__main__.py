"""`python -m trajformer.cli` runs `trajformer`."""

import os
import sys

import trajformer
from trajformer.cli import main

# Python has put the current folder first, from which no other module may be imported.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(trajformer.__path__[0]):
    del sys.path[0]

sys.exit(main())
