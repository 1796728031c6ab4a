"""Dockerfiles, compose.yaml and workflows: the linters on PATH of the environment, and rules of our own.

None of these files can run here, so they are at least read by the tools that know their languages. Each check is also
shown a broken sample, to prove that it looks.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from command_words import understood

from engines import versions

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "Dockerfiles").glob("*Dockerfile"))
COMPOSE = ROOT / "compose.yaml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GPU_SERVICES = ("build", "serve", "lab")


def run(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess:
    program = Path(sys.executable).parent / tool
    assert program.exists(), f"{tool} is not in the environment: make setup"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def schema_problems(text: str) -> list[str]:
    """What `check-jsonschema --builtin-schema vendor.compose-spec` finds, without the seconds it takes to start."""
    schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


# --- Dockerfiles ------------------------------------------------------------------------------------------------------


def test_there_is_an_image_for_building_and_one_for_serving():
    assert [path.name for path in DOCKERFILES] == ["build.Dockerfile", "serve.Dockerfile"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_hadolint_is_content(path):
    done = run("hadolint", path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FROM nvcr.io/nvidia/tritonserver:latest\nRUN cd /tmp && pip install x\n", "DL3007"),
        ("FROM a:1\nRUN pip install x\n", "DL3042"),
        ("FROM a:1\nRUN cat x | grep y\n", "DL4006"),
    ],
)
def test_hadolint_sees_a_broken_dockerfile(tmp_path, text, code):
    (tmp_path / "Dockerfile").write_text(text)
    done = run("hadolint", tmp_path / "Dockerfile")
    assert done.returncode != 0 and code in done.stdout


def dockerfile_problems(text: str) -> list[str]:
    """What hadolint does not know about."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    body = "\n".join(lines)
    problems = []
    if "FROM nvcr.io/nvidia/tritonserver:${TAG}${DIGEST:+@${DIGEST}}" not in lines or body.count("FROM") != 1:
        problems.append("the base is not NVIDIA's container with a slot for tag and digest")
    default = re.search(r"^ARG TAG=(\d\d\.\d\d)-trtllm-python-py3$", body, re.M)
    if not default or default[1] not in {c.tag for c in versions.containers()}:
        problems.append("the default tag is no container of the table")
    if re.findall(r"^USER (\S+)", body, re.M)[-1:] != ["1000:1000"]:
        problems.append("it runs as root")
    for copied in re.findall(r"^COPY (.*) \S+$", body, re.M):
        problems += [f"{name} is not there" for name in copied.split() if not (ROOT / name).exists()]
    if re.search(r"https?://|--(extra-)?index|[A-Z_]*(TOKEN|PASSWORD|SECRET)", body):
        problems.append("an address or a secret is written in")
    return problems


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_our_own_rules_for_dockerfiles(path):
    assert dockerfile_problems(path.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("${DIGEST:+@${DIGEST}}", "", "slot"), ("USER 1000:1000", "USER root", "root"),
        ("TAG=26.07", "TAG=99.01", "tag"),
        ("COPY lib", "COPY nothing", "not there"), ("ENV HOME", "ENV HF_TOKEN=x HOME", "secret"),
    ],
)  # fmt: skip
def test_our_own_rules_see_a_broken_dockerfile(old, new, word):
    text = DOCKERFILES[0].read_text()
    assert old in text
    assert any(word in problem for problem in dockerfile_problems(text.replace(old, new)))


def test_both_images_and_the_compose_file_take_the_same_tag():
    tags = {re.search(r"^ARG TAG=(\S+)", path.read_text(), re.M)[1] for path in DOCKERFILES}
    tags |= set(re.findall(r"\$\{TAG:-([^}]*)\}", COMPOSE.read_text()))
    assert len(tags) == 1
    (tag,) = tags
    # The default has a reason: no newer container of the table, and TensorRT-LLM still has trtllm-build.
    container = versions.find(tag.partition("-")[0])
    assert container == versions.containers()[0] and versions.converter("llama", container.trtllm)


def test_requirements_of_the_converters_leave_the_images_own_versions_alone(tmp_path):
    """In the manner of three files of TensorRT-LLM's examples; here "the image" is this environment."""
    old, new = tmp_path / "gpt", tmp_path / "models" / "core" / "gemma"
    for folder, text in (
        (old, "-f https://wheels.example\n-c ../../../constraints.txt\n--extra-index-url https://other.example\n"
              "# a note\ntransformers>=99\nnumpy<1.0\nnvidia-cudnn-cu12~=8.9\n\nno-such-package~=0.8.0\n"),
        (new, "Safetensors~=0.4.1  # of old\nno_such.package2==3.1.0\nno-such-package~=0.8.0\n"
              'jax~=0.4.19; platform_system == "Windows"\nnot-here~=8.9; platform_system == "Linux"\n'),
    ):  # fmt: skip
        folder.mkdir(parents=True)
        (folder / "requirements.txt").write_text(text)
    script = [sys.executable, ROOT / "Dockerfiles" / "missing_requirements.py", tmp_path]
    done = subprocess.run([*script, "gpt", "gemma"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "no-such-package~=0.8.0", "no_such.package2==3.1.0", 'not-here~=8.9; platform_system == "Linux"',
    ]  # fmt: skip
    unknown = subprocess.run([*script, "llama"], capture_output=True, text=True)
    assert unknown.returncode == 1 and "no requirements.txt for the family 'llama'" in unknown.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_the_shell_in_the_dockerfiles_parses(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    commands = [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]
    assert commands
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_the_build_context_is_what_the_images_copy():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {n for p in DOCKERFILES for c in re.findall(r"^COPY (.*) \S+$", p.read_text(), re.M) for n in c.split()}
    assert kept == copied


# --- compose.yaml -----------------------------------------------------------------------------------------------------


def compose_problems(data: dict) -> list[str]:
    """What the schema cannot know: ports on this machine only, a GPU, limits, mounts, no secret."""
    problems = []
    for name, service in data["services"].items():
        for port in service.get("ports", []):
            if not (isinstance(port, str) and re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-(\d+)\}:\1", port)):
                problems.append(f"{name}: port {port} is not bound to 127.0.0.1")
        if service.get("network_mode") or service.get("privileged"):
            problems.append(f"{name}: more rights than it needs")
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        if not any(d.get("driver") == "nvidia" and "gpu" in d.get("capabilities", []) for d in devices):
            problems.append(f"{name}: no GPU reserved")
        if service.get("ulimits") != {"memlock": -1, "stack": 67108864} or "shm_size" not in service:
            problems.append(f"{name}: limits of NVIDIA's container are not set")
        targets = {volume["target"]: volume for volume in service.get("volumes", [])}
        problems += [f"{name}: {t} is not mounted" for t in needed_mounts(name) if t not in targets]
        for volume in targets.values():
            if volume.get("bind", {}).get("create_host_path") is not False:
                problems.append(f"{name}: Docker would make {volume['source']} as root")
            source = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", volume["source"])
            if not (ROOT / source).exists() and not source.startswith("./build/trtllm/"):
                problems.append(f"{name}: {source} is not there")
        for variable in service.get("environment", []):
            if "=" in variable or not isinstance(service["environment"], list):
                problems.append(f"{name}: a value is written into environment")
        file = service.get("build", {}).get("dockerfile", "")
        if not (ROOT / file).is_file():
            problems.append(f"{name}: no {file}")
    if "healthcheck" not in data["services"]["serve"]:
        problems.append("serve: no healthcheck")
    if "--allow-root" not in data["services"]["lab"]["command"]:
        problems.append("lab: JupyterLab refuses a user who is root, as on many rented machines")
    return problems


def needed_mounts(name: str) -> list[str]:
    if name == "lab":  # notebooks, labs and data; the engines that they make
        there = ["/work/checkpoints", "/work/serving"]  # where a server that a notebook uses names its tokenizer
        return ["/work/course", "/home/course/.cache/servinglab", *there]
    return ["/work/checkpoints", "/work/engines", "/work/serving"]


def test_the_compose_file_follows_the_schema():
    assert schema_problems(COMPOSE.read_text()) == []


def test_our_own_rules_for_the_compose_file():
    data = yaml.safe_load(COMPOSE.read_text())
    assert set(data["services"]) == set(GPU_SERVICES)
    assert compose_problems(data) == []


@pytest.mark.parametrize(
    "broken", ["services:\n  a:\n    imagee: b\n", "services:\n  a:\n    ports: 8000\n", "servces: {}\n"]
)
def test_the_schema_sees_a_broken_compose_file(broken):
    assert schema_problems(broken)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda s: s["serve"].update(ports=["8000:8000"]), "not bound"),
        (lambda s: s["serve"].update(ports=["0.0.0.0:${HTTP_PORT:-8000}:8000"]), "not bound"),
        (lambda s: s["build"].pop("deploy"), "no GPU"),
        (lambda s: s["build"].pop("shm_size"), "limits"),
        (lambda s: s["lab"].update(ulimits={}), "limits"),
        (lambda s: s["lab"]["volumes"].pop(0), "/work/course is not mounted"),
        (lambda s: s["serve"]["volumes"][0].update(source="./nowhere"), "not there"),
        (lambda s: s["serve"]["volumes"][0].pop("bind"), "as root"),
        (lambda s: s["serve"].pop("healthcheck"), "healthcheck"),
        (lambda s: s["lab"]["command"].remove("--allow-root"), "refuses"),
        (lambda s: s["build"].update(environment=["HF_TOKEN=hf_x"]), "a value"),
        (lambda s: s["serve"].update(network_mode="host"), "more rights"),
        (lambda s: s["serve"]["build"].update(dockerfile="x"), "no x"),
    ],
)
def test_our_own_rules_see_a_broken_compose_file(damage, word):
    data = copy.deepcopy(yaml.safe_load(COMPOSE.read_text()))
    damage(data["services"])
    assert any(word in problem for problem in compose_problems(data))


def test_the_served_command_is_one_that_exists():
    from typer.testing import CliRunner

    from course import cli

    words = yaml.safe_load(COMPOSE.read_text())["services"]["serve"]["command"]
    assert words[:2] == ["course", "serve"]
    done = CliRunner().invoke(cli.app, words[1:] + ["--dry-run"])
    assert "serving is not a folder" in str(done.exception)  # every option was understood
    shown = re.search(r"CMD (\[.*\])", (ROOT / "Dockerfiles" / "serve.Dockerfile").read_text())[1]
    assert yaml.safe_load(shown) == words


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
def test_docker_compose_reads_it_too():
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("no docker compose here")
    done = subprocess.run(["docker", "compose", "-f", COMPOSE, "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- databases.compose.yaml -------------------------------------------------------------------------------------------

DATABASES = ROOT / "Dockerfiles" / "databases.compose.yaml"


def database_problems(data: dict) -> list[str]:
    """What the schema cannot know: pins, ports, secrets, and that each profile is whole and has its own two ports."""
    problems, published, services = [], {}, data["services"]
    running = {name: set(service.get("profiles", ["one", "many"])) for name, service in services.items()}
    for name, service in services.items():
        profiles = running[name]
        if not re.search(r":(v?\d+\.\d+\.\d+|RELEASE\.\d{4}-\d\d-\d\dT[\d-]+Z)$", service["image"]):
            problems.append(f"{name}: {service['image']} is not pinned")
        for port in service.get("ports", []):
            if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
                problems.append(f"{name}: port {port} is not bound to 127.0.0.1")
            published.setdefault(port.split(":")[1], []).extend(profiles)
        for other in service.get("depends_on", []):
            if not profiles <= running.get(other, set()):
                problems.append(f"{name}: {other} does not run in its profile")
        variables = service.get("environment", {})
        for variable in variables:
            value = variables[variable] if isinstance(variables, dict) else "${?" if "=" not in variable else variable
            if re.search("PASSWORD|SECRET|ACCESS_KEY|USER", variable) and not re.match(r"\$\{.*\?", value):
                problems.append(f"{name}: {variable} is written in, or may be empty")
        for volume in service.get("volumes", []):
            if volume.partition(":")[0] not in data["volumes"]:
                problems.append(f"{name}: the volume of {volume} is not declared")
    for port in ("19530", "27017"):
        if sorted(published.get(port, [])) != ["many", "one"]:
            problems.append(f"port {port} is not published once in each profile")
    return problems


def test_the_databases_follow_the_schema_and_our_own_rules():
    text = DATABASES.read_text()
    assert schema_problems(text) == []
    assert database_problems(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda s: s["mongo"].update(image="mongo:latest"), "not pinned"),
        (lambda s: s["minio"].update(image="minio/minio"), "not pinned"),
        (lambda s: s["proxy"].update(ports=["19530:19530"]), "not bound"),
        (lambda s: s["mongos"].update(profiles=["one"]), "published once"),
        (lambda s: s["shard2"].update(profiles=["one"]), "does not run in its profile"),
        (lambda s: s["minio"].update(environment=["MINIO_ROOT_PASSWORD=x"]), "written in"),
        (lambda s: s["milvus"]["environment"].update(MINIO_SECRET_ACCESS_KEY="minioadmin"), "written in"),
        (lambda s: s["shard1"].update(volumes=["else:/data/db"]), "not declared"),
    ],
)
def test_our_own_rules_see_broken_databases(damage, word):
    data = copy.deepcopy(yaml.safe_load(DATABASES.read_text()))
    damage(data["services"])
    assert any(word in problem for problem in database_problems(data))


def test_the_readme_gives_the_addresses_that_the_databases_are_published_at():
    text = (ROOT / "Dockerfiles" / "README.md").read_text()
    assert 'VectorStore("http://127.0.0.1:19530")' in text
    assert 'DocumentStore("mongodb://127.0.0.1:27017/?directConnection=true")' in text
    services = yaml.safe_load(DATABASES.read_text())["services"]
    scaled = re.findall(r"--scale (\w+)=", text)
    assert scaled and all("ports" not in services[name] for name in scaled)


# --- workflows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_actionlint_is_content(path):
    done = run("actionlint", "-no-color", path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("step", "word"),
    [("uses: actions/checkout@v4", "node20"), ("run: echo ${{ nothing.here }}", "undefined"), ("runs: x", "runs")],
)
def test_actionlint_sees_a_broken_workflow(tmp_path, step, word):
    (tmp_path / "w.yml").write_text(
        f"name: w\non: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - {step}\n"
    )
    done = run("actionlint", "-no-color", tmp_path / "w.yml")
    assert done.returncode != 0 and word in done.stdout


# --- the instructions -------------------------------------------------------------------------------------------------


def test_every_course_command_in_the_readme_is_understood():
    text = (ROOT / "Dockerfiles" / "README.md").read_text().replace("\\\n", " ")
    text = re.sub(r"--entrypoint course build (.*) > \S+", r"course \1", text)
    blocks = re.findall(r"^```\n(.*?)^```", text, re.M | re.S)
    pattern = re.compile(r"\bcourse ((?:engine|repo|serve|run)\b.*)$", re.M)
    commands = [shlex.split(found) for block in blocks for found in pattern.findall(block)]
    assert len(commands) == 7
    for words in commands:
        understood(words)


def test_the_readme_and_the_compose_file_name_the_same_folders():
    made = re.search(r"^mkdir -p (.*)$", (ROOT / "Dockerfiles" / "README.md").read_text(), re.M)[1].split()
    wanted = re.findall(r"source: \$\{\w+:-\./([^}]*)\}", COMPOSE.read_text())
    assert sorted(made) == sorted(wanted)


def test_the_folders_on_the_way_to_a_mount_are_in_the_images():
    """Else Docker makes them as root: /home/course/.cache, too, into which other programs write."""
    home = set(re.findall(r"target: (/home/\S+)", COMPOSE.read_text()))
    assert home
    for path in DOCKERFILES:
        made, opened = re.search(r"mkdir -p (.+) && chmod -R 1777 (.+)", path.read_text()).groups()
        assert all(any(f"{folder}/".startswith(f"{there}/") for folder in made.split()) for there in home)
        assert opened == "/work /home/course"


def test_the_readme_names_the_newest_container_of_every_driver_that_the_course_has_templates_for():
    text = (ROOT / "Dockerfiles" / "README.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| (\d\d\.\d\d) \| ([\d.]+) \|$", text, re.M)
    known = [c for c in versions.containers() if c.generation != "before 0.19"]
    newest = {versions.newest_for(c.driver).tag: c.driver for c in known}
    assert rows == [(driver, tag, versions.find(tag).trtllm) for tag, driver in newest.items()]


def test_the_readme_names_every_variable_of_the_compose_file():
    text = (ROOT / "Dockerfiles" / "README.md").read_text().partition("## The databases")[0]
    for name in set(re.findall(r"\$\{(\w+)", COMPOSE.read_text())) - {"SHM_SIZE"}:
        assert re.search(rf"(?<![A-Z_]){name}[=`]", text.replace("\\n", " ")), name
