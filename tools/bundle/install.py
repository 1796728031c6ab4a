"""The second half of install.sh, run as `install.py BUNDLE DEST [TORCH_FROM]` by the Python of the environment to be.

Only the standard library and the modules of this checkout that need nothing else are used. Each step is kept when it is
done; the environment is marked while it is made, and made anew when the last install was interrupted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "lib")]

import link_torch  # noqa: E402
from unpack_parts import unpack  # noqa: E402

from servinglab import keep  # noqa: E402
from servinglab.errors import CourseError  # noqa: E402
from servinglab.server import install as triton_install  # noqa: E402

_FIND_TORCH = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
_TRY_TORCH = "import torch as t; t.zeros(2).numpy(); print('torch', t.__version__, 'cuda', t.cuda.is_available())"


class Install:
    """bundle: the folder of the parts. dest: the course's folder; the new course is in its .new."""

    def __init__(self, bundle: Path, dest: Path, torch_from: str | None):
        self.bundle, self.dest, self.venv = bundle, dest, dest / ".venv"
        self.python = self.venv / "bin" / "python"
        self.installed = self.venv / ".course-stamp"  # of the course itself; also what requirements/setup.sh looks for
        self.facts = dict(line.split("=", 1) for line in (bundle / "bundle.txt").read_text().splitlines())
        if torch_from is None and self.facts["torch"] == "none":
            if subprocess.run([sys.executable, "-c", _FIND_TORCH], cwd="/").returncode:
                raise CourseError(
                    f"This bundle holds no PyTorch and {sys.executable} has none: name an interpreter that has it "
                    "(--torch-from /path/to/python), or make the bundle with ARGS='--torch cpu'."
                )
            torch_from = sys.executable
        self.torch_from = torch_from
        self.torch = link_torch.ask(torch_from) if torch_from else {}

    def run(self) -> None:
        triton_install.require_platform()
        triton_install.library_folder()
        triton_install.require_plain_path(self.dest, "the course", "choose another --dest")
        self.place_course()
        self.make_environment()
        if not self.installed.exists():
            say("installing the course")
            self.pip("install", "--no-deps", "--no-build-isolation", "--editable", str(self.dest))
            self.mark_for_make()
        self.fetch()

    def place_course(self) -> None:
        """Move the unpacked course to its place when it is another than before; what you changed there is kept."""
        new, mark = self.dest / ".new", self.dest / ".bundle-course"
        wanted = self.sums("course.", "data.")
        if read(mark) != wanted:
            mark.unlink(missing_ok=True)
            self.installed.unlink(missing_ok=True)
            for name, yours in keep.update(new, self.dest):
                say(f"you had changed {name}: yours is now {self.dest / yours}")
            if (self.dest / keep.YOURS).is_dir():  # also when an update that was killed had moved them
                say(f"what you had changed before any update is in {self.dest / keep.YOURS}")
            mark.write_text(wanted)
        shutil.rmtree(new, ignore_errors=True)

    def make_environment(self) -> None:
        """The packages of the bundle, and torch."""
        mark, unfinished = self.venv / ".bundle-stamp", self.venv / ".course-unfinished"
        wanted = f"{self.sums('wheels.')} {sys.executable} {sys.version} {self.torch.get('torch')}"
        healthy = self.python.exists() and not subprocess.run([self.python, "-c", ""]).returncode
        if read(mark) == wanted and healthy and not unfinished.exists():
            say("the environment is there already")
            return
        started = time.monotonic()
        mark.unlink(missing_ok=True)
        shutil.rmtree(self.venv, ignore_errors=True)
        self.require_space()
        wheels = self.dest / ".wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        try:
            say("unpacking the packages")
            unpack(self.bundle, "wheels.tar.xz", wheels)
            say(f"installing {len(list(wheels.glob('*.whl')))} packages")
            self.venv.mkdir()
            unfinished.touch()
            run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], "Making the environment")
            listed = wheels / "requirements.txt"  # with the hash of each wheel
            kept = [line for line in listed.read_text().splitlines() if not (self.torch and line.startswith("torch=="))]
            listed.write_text("\n".join(kept))
            options = ["--no-deps", "--no-compile", "--find-links", str(wheels), "--require-hashes", "-r", str(listed)]
            self.pip("install", *options, wheels=wheels)
        finally:
            shutil.rmtree(wheels, ignore_errors=True)
        (site,) = self.venv.glob("lib/python3.*/site-packages")
        if self.torch:
            linked = link_torch.link(self.torch, site)
            say(f"linked from {self.torch_from}: {', '.join(sorted(linked))}")
        say(run([str(self.python), "-c", _TRY_TORCH], "Importing torch with the numpy of the bundle"))
        mark.write_text(wanted)
        unfinished.unlink()
        say(f"environment ready in {time.monotonic() - started:.0f} s")

    def require_space(self) -> None:
        """The packages are there twice while they are installed. `course fetch` looks after the cache itself."""
        need, free = 2 * int(self.facts["packages"]), shutil.disk_usage(self.dest).free
        if free < need:
            raise CourseError(
                f"The disk of {self.dest} has {free / 1e9:.1f} GB left and the packages need {need / 1e9:.1f} GB; "
                "free some, or choose another --dest."
            )

    def mark_for_make(self) -> None:
        """Tell requirements/setup.sh that the environment is made, so that `make lab` installs nothing."""
        command = 'printf %s "$(cat pyproject.toml requirements/*.txt requirements/setup.sh | cksum) torch=auto"'
        text = run(["bash", "-c", f"cd {self.dest} && {command}"], "Marking the environment")
        self.installed.write_text(text)

    def fetch(self) -> None:
        """Put the weights in the cache and prepare them, then show what this machine can run."""
        course = str(self.venv / "bin" / "course")
        code = "from servinglab import assets; print(assets.cache_dir())"
        cache = Path(run([str(self.python), "-c", code], "Finding the cache"))
        (cache / "wheels").mkdir(parents=True, exist_ok=True)
        say(f"preparing the weights in {cache} (the first time takes minutes)")
        unpack(self.bundle, "weights.tar", cache / "wheels")
        env = {**environment(), "SERVINGLAB_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
        if subprocess.run([course, "fetch"], env=env, cwd=self.dest).returncode:
            raise CourseError("The weights could not be prepared; the line above says why.")
        if subprocess.run([course, "doctor"], env=env, cwd=self.dest).returncode:
            raise CourseError("This machine cannot run the course; the lines above say why.")

    def pip(self, *arguments: str, wheels: Path | None = None) -> None:
        """pip of the new environment, or the one of the bundle before there is one; never from an index."""
        program = [str(next(wheels.glob("pip-*.whl")) / "pip")] if wheels else ["-m", "pip"]
        options = ["--quiet", "--isolated", "--disable-pip-version-check", "--no-input"]
        command, *rest = arguments
        run([str(self.python), *program, *options, command, "--no-index", *rest], "Installing packages")

    def sums(self, *prefixes: str) -> str:
        """Identifies the content of the parts whose names begin with one of `prefixes`."""
        lines = (self.bundle / "SHA256SUMS").read_text().splitlines()
        chosen = "\n".join(line for line in lines if line.partition("  ")[2].startswith(prefixes))
        return hashlib.sha256(chosen.encode()).hexdigest()


def environment() -> dict[str, str]:
    """What we run sees nothing of pip's or Python's settings of this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def run(command: list[str], what: str) -> str:
    """What a command prints. Raises CourseError with its last line when it fails."""
    answer = subprocess.run(command, capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL)
    if answer.returncode:
        said = (answer.stderr.strip() or answer.stdout.strip() or "it said nothing").splitlines()
        errors = [line for line in said if line.startswith("ERROR")] or said
        raise CourseError(f"{what} failed: {errors[-1][:300]}")
    return answer.stdout.strip()


def read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    bundle, dest, *torch_from = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        Install(Path(bundle), Path(dest), next(iter(torch_from), None)).run()
    except CourseError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else error.strerror or str(error)
        print(f"install: {what}: {error.filename or dest}; run this again when that is cured.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: stopped; run this again to go on.", file=sys.stderr)
        return 130
    cache = os.environ.get("SERVINGLAB_CACHE")
    say(f"\nThe course is in {dest}. To work with it:\n")
    say(f"  cd {dest} && source .venv/bin/activate" + (f" && export SERVINGLAB_CACHE={cache}" if cache else ""))
    say("  course run 00          # or: course lab")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
