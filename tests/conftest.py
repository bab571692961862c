"""Configuration of the library's tests: see helpers/every_test.py."""

from every_test import *  # noqa: F403
