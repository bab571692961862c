"""Configuration of the laboratory's tests, which is that of the library's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what its scripts import: rivals

from every_test import *  # noqa: F403
