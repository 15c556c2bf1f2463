"""`python -m trajformer.cli` is `trajformer`."""

import sys

from trajformer.cli import main

sys.exit(main())
