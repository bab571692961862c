"""List the back ends of Keras as parameters of tests; a process has one back end."""

import importlib.util

import pytest

# PyTorch is not among what the tests install.
ON_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                              reason="PyTorch is not installed: scripts/test_torch.sh")
TORCH = pytest.param("torch", marks=ON_TORCH)
# Where one more equal test shows little, and takes half a minute.
JAX_AT_NIGHT = pytest.param("jax", marks=pytest.mark.long)
