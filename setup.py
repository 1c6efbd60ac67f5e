"""Packaging of guild-dask. The version lives in guild_dask/__init__.py, and nowhere else."""

import ast
import pathlib

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent

VERSION = ast.literal_eval((HERE / "guild_dask" / "__init__.py").read_text().rpartition("__version__ = ")[2])

# What makes guildai 0.9.0 work on a fresh machine, beside guildai itself. Each line is needed; the reason is what
# happens without it.
GUILD_WORKS_WITH = [
    "guildai>=0.9,<0.10",  # ${guild_python_exe} exists since 0.9, and we rely on 0.9's run directories
    "setuptools>=66.1,<80.9",  # 82 has no pkg_resources, which Guild imports; 80.9 to 81 warn at every command
    "zombie-imp; python_version >= '3.12'",  # Guild imports `imp`, which Python 3.12 removed
    "click>=8.1,<8.2",  # 8.2 empties `guild runs`; 8.3 passes Sentinel.UNSET to click-based user scripts
    "chardet>=3.0.4,<6",  # from 7 `guild run` fails where a project holds a binary file of unknown type
    "tabview>=1.4.3,<1.5",  # without it the interactive `guild compare` shows no data
]

TLS = ["cryptography>=42"]  # certificates made for one cluster
JOBQUEUE = ["dask-jobqueue>=0.9", *TLS]

setup(
    name="guild-dask",
    version=VERSION,
    description="Run staged Guild AI runs in parallel on a Dask cluster, without losing one",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",  # Guild reads `ast.Str`, which Python 3.14 removed
    packages=find_packages(include=["guild_dask", "guild_dask.*"]),
    package_data={"guild_dask": ["dask.yml", "py.typed", "monitor/page/static/*"]},
    install_requires=[
        *GUILD_WORKS_WITH,
        "dask>=2024.12",
        "distributed>=2024.12",
        "bokeh>=3.1",  # Dask's dashboard
        "packaging>=20",  # versions, for the doctor
        "psutil>=5.9",  # process trees of runs
        "pyyaml>=6",
    ],
    extras_require={
        "jobqueue": JOBQUEUE,
        "ssh": TLS,
        "test": ["pytest>=8", "hypothesis>=6.100", "selenium>=4.15", *JOBQUEUE],
    },
    entry_points={
        "guild.plugins": ["guild_dask = guild_dask.plugin:DaskSchedulerPlugin"],
        "console_scripts": ["guild-dask = guild_dask.cli.main:main"],
    },
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)
