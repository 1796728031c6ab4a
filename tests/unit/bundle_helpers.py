"""A tiny bundle with the real install.sh: its course notes how it is called, its packages are nearly empty."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bundle"))

import make_bundle  # noqa: E402, F401  for the tests
import pack_parts  # noqa: E402
import select_wheels  # noqa: E402, F401
import unpack_parts  # noqa: E402, F401

CLI = """
import os, sys
from pathlib import Path
def main():
    network = os.environ.get("SERVINGLAB_OFFLINE")
    with open(Path(__file__).parents[2] / "calls", "a") as log:
        print(*sys.argv[1:], f"offline={network}", file=log)
    sys.exit(int(os.environ.get("FAKE_COURSE_FAILS") == sys.argv[1]))
"""
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "servinglab"
version = "0"
[project.scripts]
course = "course.cli:main"
[tool.setuptools.packages.find]
where = ["lib"]
"""
TORCH = """
__version__ = "{version}"
class cuda:
    is_available = staticmethod(lambda: True)
class zeros:
    def __init__(self, count): pass
    def numpy(self):
        import numpy
        assert numpy.__version__.startswith("1."), "torch met numpy " + numpy.__version__
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> Path:
    """A wheel of pure Python."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {**files, f"{info}/METADATA": "\n".join(lines) + "\n", f"{info}/WHEEL": tags}
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    _zip(path, {name: text.encode() for name, text in files.items()}, info)
    return path


def installed_wheel(folder: Path, name: str) -> Path:
    """A wheel of a distribution as it is installed here: real pip and setuptools without a download."""
    distribution = metadata.distribution(name)
    info = f"{name}-{distribution.version}.dist-info"
    kept = [f for f in distribution.files if f.parts[0] in (name, info, "_distutils_hack", "distutils-precedence.pth")]
    content = {str(f): f.locate().read_bytes() for f in kept if f.suffix != ".pyc" and f.locate().is_file()}
    path = folder / f"{name}-{distribution.version}-py3-none-any.whl"
    _zip(path, {k: v for k, v in content.items() if Path(k).name not in ("RECORD", "INSTALLER", "REQUESTED")}, info)
    return path


def _zip(path: Path, files: dict[str, bytes], info: str) -> None:
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


def tiny_course(folder: Path) -> Path:
    """What install.py needs of a checkout, and a `course` command that notes its calls."""
    for name in ("tools/bundle", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "lib" / "servinglab"
    (package / "server").mkdir(parents=True)
    for name in ("errors.py", "keep.py", "server/__init__.py", "server/install.py"):
        shutil.copy(ROOT / "lib" / "servinglab" / name, package / name)
    (package / "__init__.py").write_text("")
    (package / "assets.py").write_text(
        "import os, pathlib\ndef cache_dir(): return pathlib.Path(os.environ['SERVINGLAB_CACHE'])\n"
    )
    (folder / "lib" / "course").mkdir()
    (folder / "lib" / "course" / "__init__.py").write_text("")
    (folder / "lib" / "course" / "cli.py").write_text(CLI)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / "00.ipynb").write_text("first edition")
    return folder


def pack_course(course: Path, bundle: Path) -> None:
    for old in [*bundle.glob("course.tar.gz.*"), *bundle.glob("data.tar.*")]:
        old.unlink()
    files = [(str(p.relative_to(course)), p) for p in course.rglob("*") if p.is_file()]
    pack_parts.pack(files, bundle / "course.tar.gz", part_size=20_000)
    pack_parts.pack([("data/draft/layers.bin", course / "pyproject.toml")], bundle / "data.tar", part_size=1000)
    write_sums(bundle)


def write_sums(bundle: Path) -> None:
    pack_parts.write_sums(bundle, [p for p in bundle.iterdir() if p.name != pack_parts.SUMS])


def tiny_bundle(folder: Path, *, torch: str, packages: int = 1) -> Path:
    """A bundle for this Python: course.tar.gz.*, wheels.tar.xz.*, weights.tar.*, bundle.txt, install.sh, SHA256SUMS."""
    bundle, wheels = folder / "bundle", folder / "wheels"
    bundle.mkdir(parents=True)
    wheels.mkdir()
    made = [installed_wheel(wheels, "pip"), installed_wheel(wheels, "setuptools")]
    made += [wheel(wheels, "numpy", "1.26.4", {"numpy/__init__.py": "__version__ = '1.26.4'"})]
    made += [wheel(wheels, "filelock", "4.3", {"filelock/__init__.py": "__version__ = '4.3'"})]
    if torch != "none":
        made += [wheel(wheels, "torch", "2.13.0+cpu", {"torch/__init__.py": TORCH.format(version="2.13.0+cpu")})]
    for path in made:
        pack_parts.store(path)
    (wheels / "requirements.txt").write_text("".join(map(pack_parts.requirement, made)))
    weights = folder / "weights"
    weights.mkdir()
    (weights / "model.whl").write_bytes(b"weights" * 1000)
    pack_parts.pack([(p.name, p) for p in wheels.iterdir()], bundle / "wheels.tar.xz", part_size=500_000, level=0)
    pack_parts.pack([("model.whl", weights / "model.whl")], bundle / "weights.tar", part_size=10_000)
    shutil.copy(ROOT / "tools" / "bundle" / "install.sh", bundle)
    version = "{}.{}".format(*sys.version_info)
    (bundle / "bundle.txt").write_text(f"python={version}\ntorch={torch}\npackages={packages}\n")
    pack_course(tiny_course(folder / "course"), bundle)
    return bundle


def torch_python(folder: Path) -> Path:
    """An interpreter with a CUDA torch, its companions, and a numpy 2."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    files = {"torch/__init__.py": TORCH.format(version="2.9.1"), "torchgen/__init__.py": ""}
    requires = ["filelock", "nvidia-cublas==1", "nvidia-cudnn; platform_system == 'Linux'", "numpy", "absent"]
    packages = [
        wheel(folder, "torch", "2.9.1", files, (*requires, "optree; extra == 'optree'")),
        wheel(folder, "nvidia-cublas", "1", {"nvidia/cublas/lib.py": "one = 1"}, ("nvidia-nvjitlink",)),
        wheel(folder, "nvidia-cudnn", "2", {"nvidia/cudnn/lib.py": "two = 2"}),
        wheel(folder, "nvidia-nvjitlink", "3", {"nvidia/nvjitlink/lib.py": "three = 3"}),
        wheel(folder, "filelock", "3.0", {"filelock/__init__.py": "__version__ = '3.0'"}),
        wheel(folder, "numpy", "2.3.0", {"numpy/__init__.py": "__version__ = '2.3.0'"}),
        wheel(folder, "optree", "1", {"optree/__init__.py": ""}),
        wheel(folder, "pandas", "2", {"pandas/__init__.py": ""}),
    ]
    for path in packages:
        zipfile.ZipFile(path).extractall(site)
    return folder / "bin" / "python"
