"""Packaging of guild-dask. The version lives in guild_dask/__init__.py, and nowhere else."""

import ast
import pathlib

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent

VERSION = ast.literal_eval((HERE / "guild_dask" / "__init__.py").read_text().rpartition("__version__ = ")[2])

# What Guild needs beside its own requirements. guild_dask/mends/ makes guildai 0.9.0 work with current releases of all
# other packages.
GUILD_WORKS_WITH = [
    "guildai>=0.9,<0.10",  # ${guild_python_exe} exists since 0.9, and we rely on 0.9's run directories
    "click>=8.1,!=8.2.2",  # with 8.2.2 `guild runs` prints nothing
    "tabview>=1.4.3,<1.5",  # without it the interactive `guild compare` shows no data
]

# Files that Python reads at its start, beside the package: they have guild_dask/mends/ wait for Guild. Python 3.15 and
# later reads the entry point of the .start file instead of the line in the .pth file. The line never fails, even if
# the package is no longer there. The names sort after that of the file that makes an editable installation importable.
HOOK = "guild_dask.mends.hook"
START_FILES = {
    "guild_dask_mends.pth": (
        f"import sys; exec('try:\\n    from {HOOK} import install; install()\\nexcept Exception: pass')\n"
    ),
    "guild_dask_mends.start": f"{HOOK}:install\n",
}


class BuildWithStartFiles(build_py):  # type: ignore[misc]  # setuptools has no types
    """Puts the start files beside the packages: into a wheel, and into that of an editable installation."""

    def run(self) -> None:
        super().run()
        # What an editable installation does not read from the checkout goes where files are installed from.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        for name, text in START_FILES.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


TLS = ["cryptography>=42"]  # certificates made for one cluster
OPTIMIZE = ["optuna>=5,<6"]  # the engine of searches
JOBQUEUE = ["dask-jobqueue>=0.9", *TLS]

setup(
    name="guild-dask",
    version=VERSION,
    description="Run staged Guild AI runs in parallel on a Dask cluster, without losing one",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["guild_dask", "guild_dask.*"]),
    package_data={"guild_dask": ["dask.yml", "py.typed", "monitor/page/static/*", "worker/warm_site/*.py"]},
    install_requires=[
        *GUILD_WORKS_WITH,
        "dask>=2024.12",
        "distributed>=2024.12",
        "bokeh>=3.1",  # Dask's dashboard
        "packaging>=20",  # versions and requirements, for the mends and the doctor
        "psutil>=5.9",  # process trees of runs
        "pyyaml>=6",
    ],
    extras_require={
        "jobqueue": JOBQUEUE,
        "ssh": TLS,
        "optimize": OPTIMIZE,
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "selenium>=4.15",
            "setuptools>=77",
            *JOBQUEUE,
            *OPTIMIZE,
        ],
    },
    cmdclass={"build_py": BuildWithStartFiles},
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
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: 3.15",
    ],
)
