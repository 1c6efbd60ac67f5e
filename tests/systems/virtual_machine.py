"""A virtual machine with a kernel of Debian, for features that the kernel of this machine lacks.

Its disk is that of this machine, read-only, with changes kept in memory: it has all programs and this checkout. It
needs no hardware support and no privileges, and is ten times slower than this machine.
"""

import gzip
import pathlib
import shutil
import subprocess
import textwrap

from tests.systems.needs import Missing, program

_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
_SHARED = "msize=512000,trans=virtio,version=9p2000.L"

_INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read module; do insmod /modules/$module; done < /modules/order
mount -t 9p -o ro,cache=loose,{_SHARED} disk /disk
mount -t tmpfs -o size=75% changes /changes; mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/disk,upperdir=/changes/upper,workdir=/changes/work overlay /root
mount --move /dev /root/dev; mount --move /proc /root/proc; mount --move /sys /root/sys
exec switch_root /root /bin/sh FOLDER/boot
"""

_BOOT = f"""\
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root
mount -t tmpfs run /run; mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t 9p -o rw,cache=none,{_SHARED} folder FOLDER
ip link set lo up
(COMMAND) > FOLDER/output 2>&1
echo $? > FOLDER/exit-code
sync; echo o > /proc/sysrq-trigger; sleep 60
"""


def run(command: str, folder: pathlib.Path, seconds: float) -> tuple[int | None, str]:
    """Runs a shell command as root in a virtual machine; returns its exit code and output.

    The folder is shared with this machine. The exit code is None if the command timed out.
    """
    kernel = _kernel()
    for name, text in (("boot", _BOOT), ("init", _INIT)):
        (folder / name).write_text(text.replace("FOLDER", str(folder)).replace("COMMAND", command))
    image = folder / "image.gz"
    image.write_bytes(gzip.compress(_first_disk(folder, kernel.name.removeprefix("vmlinuz-")), 1))
    machine = ["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "6G", "-smp", "2", "-nic", "none", "-no-reboot"]
    words = [program("qemu-system-x86_64"), *machine, "-nographic", "-device", "virtio-rng-pci"]
    words += ["-kernel", str(kernel), "-initrd", str(image), "-append", "console=ttyS0 panic=1"]
    for tag, path, more in (("disk", "/", ",readonly=on,multidevs=remap"), ("folder", str(folder), "")):
        words += ["-fsdev", f"local,id={tag},path={path},security_model=none{more}"]
        words += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    with (folder / "console").open("wb") as console:
        try:
            subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=console, stderr=console, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return None, _text(folder / "output")
    code = _text(folder / "exit-code").strip()
    return (int(code) if code else None), _text(folder / "output") or _text(folder / "console")


def _text(path: pathlib.Path) -> str:
    return path.read_text(errors="backslashreplace") if path.exists() else ""


def _kernel() -> pathlib.Path:
    found = [path for path in pathlib.Path("/boot").glob("vmlinuz-*") if _modules(path.name).is_dir()]
    if not found:
        raise Missing("there is no kernel with modules in /boot: install linux-image-amd64")
    return max(found, key=lambda path: path.stat().st_mtime)


def _modules(kernel: str) -> pathlib.Path:
    return pathlib.Path("/lib/modules", kernel.removeprefix("vmlinuz-"))


def _first_disk(folder: pathlib.Path, version: str) -> bytes:
    """Returns the initial file system: a shell, and the modules with which the kernel mounts this machine's disk."""
    tree = folder / "first-disk"
    for name in ("bin", "modules", "proc", "sys", "dev", "disk", "changes", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy(program("busybox"), tree / "bin" / "busybox")
    shutil.move(folder / "init", tree / "init")
    (tree / "init").chmod(0o755)
    order: list[str] = []
    for module in _MODULES:
        depends = _output([program("modprobe"), "-S", version, "--show-depends", module])
        order += [line.split()[1] for line in depends.splitlines() if line.startswith("insmod")]
    order = list(dict.fromkeys(order))
    for path in order:
        shutil.copy(path, tree / "modules")
    names = (pathlib.Path(path).name for path in order)
    (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in names))
    files = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        [program("cpio"), "-o", "-H", "newc", "--quiet"],
        input=files.encode(),
        cwd=tree,
        capture_output=True,
        check=True,
    )
    return packed.stdout


def _output(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(textwrap.shorten(done.stderr, 200))
    return done.stdout
