"""What a wheel holds: the packages, and the CUDA sources of `cuda/` as `xbench/cuda`, which pyproject cannot say."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["xbench*"]), "xbench.cuda"],
    package_dir={"xbench.cuda": "cuda"},
    package_data={
        "xbench": [f"**/*.{kind}" for kind in ("css", "jinja", "js", "txt", "typed")],
        "xbench.cuda": ["*.cu"],
    },
)
