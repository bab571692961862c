"""Packaging: `pip install .` installs the library; the experiment's scripts run from a checkout."""

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(line for line in (HERE / "wbsp/__init__.py").read_text().splitlines()
               if line.startswith("__version__")).split('"')[1]

EDITABLE = HERE / ".editable"  # all that an editable installation puts on Python's path


def editable() -> dict[str, str]:
    """Where packages lie for `pip install -e`, which else has a finder for them that comes behind
    every folder called wbsp/ on the path: a clone of this repository beside a script hides it."""
    if "editable_wheel" not in sys.argv:
        return {}
    EDITABLE.mkdir(exist_ok=True)
    if not (EDITABLE / "wbsp").exists():
        os.symlink(Path("..", "wbsp"), EDITABLE / "wbsp")
    return {"": EDITABLE.name}


setup(
    name="wbsp",
    version=VERSION,
    description="A parameter server for Keras on unequal machines: WBSP and its rivals by name",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    package_dir=editable(),
    packages=find_packages(include=["wbsp", "wbsp.*"]),
    package_data={"wbsp": ["py.typed"], "wbsp.watch": ["page.*", "*.js"]},
    python_requires=">=3.10",
    install_requires=[
        "absl-py",
        "msgspec>=0.18",
        "numpy",
        "psutil>=5.9",
        "pyzmq>=26",
        "rich",
        'tomli; python_version < "3.11"',
        "safetensors",
        "tensorboard",
        "tensorflow>=2.18",
    ],
    extras_require={
        "adsp": ["scipy"],
        "cuda": ["tensorflow[and-cuda]>=2.18"],
        "figures": ["matplotlib"],
        "jax": ["jax"],
        "ray": ["ray[default]>=2.40"],
        "test": ["flax", "greenlet", "hypothesis", "jax", "kubeflow-trainer-api",
                 "kubernetes-validate", "matplotlib", "mypy", "orbax-checkpoint", "plotly>=5",
                 "pytest", "pytest-timeout", "pytest-xdist", "ray[default]>=2.40", "ruff", "scipy"],
        "torch": ["torch"],
        "watch": ["plotly>=5"],
    },
    classifiers=[
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
