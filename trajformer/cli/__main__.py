"""`python -m trajformer.cli` runs `trajformer`."""

import sys

from trajformer.cli import main

sys.exit(main())
