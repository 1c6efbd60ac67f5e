"""The names of the GPUs that this process may use.

Variables of the user or a batch system decide, if they are set. Otherwise the drivers are asked: NVIDIA's by its own
command, AMD's through the kernel.
"""

import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Variables of the user or a batch system, the nearest to the run first.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_OF_JOB = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")

_NVIDIA = ("nvidia-smi", "-L")
_PATIENCE = 30.0  # seconds; the driver may have to be loaded

_AMD_NODES = pathlib.Path("/sys/class/kfd/kfd/topology/nodes")

_GPU_LINE = re.compile(r"GPU (\d+): .*")
_MIG_LINE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\).*")
_ID = re.compile(r"\(UUID: ([^)]+)\)")
_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Discovery:
    """The names of the devices, in the form of CUDA_VISIBLE_DEVICES, and what named them; None: neither driver did."""

    names: tuple[str, ...]
    source: str | None

    def __str__(self) -> str:
        if self.names:
            return f"{', '.join(self.names)} (found by {self.source})"
        if self.source:
            return f"none ({self.source} names none)"
        return "none was found (nvidia-smi lists none or is not installed, and the kernel knows no AMD GPU)"


def found(environ: Mapping[str, str], nvidia: Sequence[str] = _NVIDIA, amd: pathlib.Path = _AMD_NODES) -> Discovery:
    """Returns the devices that this process may use."""
    for name in _VISIBLE:
        if name in environ:
            return Discovery(tuple(visible(environ[name])), name)
    rocr = "ROCR_VISIBLE_DEVICES"
    if rocr in environ:
        # The other variables number the devices that this one leaves.
        return Discovery(tuple(str(number) for number in range(len(visible(environ[rocr])))), rocr)
    for name in _OF_JOB:
        if environ.get(name):
            return Discovery(tuple(in_ranges(environ[name])), name)
    return _by_drivers(_output(nvidia, environ), _amd(amd))


def _by_drivers(nvidia: str, amd: Sequence[str]) -> Discovery:
    by_nvidia = listed(nvidia)
    if by_nvidia:
        return Discovery(tuple(by_nvidia), _NVIDIA[0])
    return Discovery(tuple(amd), "the kernel's AMD driver" if amd else None)


def doubt(
    names: Sequence[str], environ: Mapping[str, str], nvidia: Sequence[str] = _NVIDIA, amd: pathlib.Path = _AMD_NODES
) -> str:
    """Returns which of the devices that the user named the drivers do not list; empty if they list all of them.

    A driver's command may be missing where the devices are there, as in containers.
    """
    by_nvidia, by_kernel = _output(nvidia, environ), _amd(amd)
    ids = [each[1] for each in _ID.finditer(by_nvidia)]
    numbers = {each[1] for each in map(_GPU_LINE.fullmatch, by_nvidia.splitlines()) if each} | set(by_kernel)

    def is_listed(name: str) -> bool:
        if name.isdecimal():
            return name in numbers
        # CUDA takes the beginning of an id. The kernel does not list the ids of AMD's libraries.
        return bool(by_kernel) or any(each.startswith(name) for each in ids)

    missing = ", ".join(name for name in names if not is_listed(name))
    there = _by_drivers(by_nvidia, by_kernel)
    return (f"{missing} not found; there is {there}" if there.names else f"{missing}: {there}") if missing else ""


def are_assigned(environ: Mapping[str, str]) -> bool:
    """Returns whether the user or a batch system has assigned devices to this process."""
    return any(environ.get(name) is not None for name in (*_VISIBLE, "ROCR_VISIBLE_DEVICES", *_OF_JOB))


def visible(text: str) -> list[str]:
    """Returns the devices of a variable such as CUDA_VISIBLE_DEVICES: those before the first invalid name."""
    devices: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if not name or name.startswith("-") or name in ("none", "void", "NoDevFiles"):
            break
        devices.append(name)
    return list(dict.fromkeys(devices))


def in_ranges(text: str) -> list[str]:
    """Returns the devices of a Slurm list such as 0,2-3."""
    devices: list[str] = []
    for part in text.split(","):
        limits = _RANGE.fullmatch(part.strip())
        if limits and int(limits[2]) - int(limits[1]) < 1000:
            devices += map(str, range(int(limits[1]), int(limits[2]) + 1))
        elif part.strip():
            devices.append(part.strip())
    return list(dict.fromkeys(devices))


def listed(text: str) -> list[str]:
    """Returns the devices that `nvidia-smi -L` prints: numbers of GPUs, or ids of MIG instances."""
    devices: dict[str, list[str]] = {}
    number = ""
    for line in text.splitlines():
        gpu, part = _GPU_LINE.fullmatch(line), _MIG_LINE.fullmatch(line)
        if gpu:
            number = gpu[1]
            devices[number] = []
        elif part and number:
            devices[number].append(part[1])
    return [name for number, parts in devices.items() for name in parts or [number]]


def _output(command: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=True, env=dict(environ)
        )
    except (OSError, subprocess.SubprocessError):
        return ""  # the driver is missing or broken
    return finished.stdout


def _amd(nodes: pathlib.Path) -> list[str]:
    """Returns AMD's GPUs, numbered as by its libraries: the nodes of the kernel's topology that have SIMD units."""
    count = 0
    try:
        for node in sorted(nodes.iterdir(), key=lambda path: int(path.name)):
            properties = dict(line.split(" ", 1) for line in (node / "properties").read_text().splitlines())
            count += int(properties.get("simd_count", "0")) > 0
    except (OSError, ValueError):
        return []
    return [str(number) for number in range(count)]
