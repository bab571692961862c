"""Configuration of the laboratory's tests, which is that of the library's."""

from every_test import *  # noqa: F403
