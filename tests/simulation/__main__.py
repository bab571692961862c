"""`python tests/simulation --runs=1000`: see docs/explanation/simulation.md."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from simulated.command import main  # noqa: E402

sys.exit(main())
