"""Shared fixtures: real weights, prepared once in the user's cache, and real Triton servers, one of each kind a run."""

from __future__ import annotations

import datetime
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from live_page import browser, live_page  # noqa: F401  fixtures

# Scripts and the notebooks' own modules, no packages that are installed.
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tools", "notebooks")]

# A busy machine is no failure; the cases are the same every time.
settings.register_profile(
    "course", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("course")

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Which notebook's turn it is to run with its other parameters: each day and each minor version of Python has another
# one. In the environment, so that every worker of a run has the same, and a run can be repeated.
TURN = os.environ.setdefault("COURSE_TURN", str(3 * datetime.date.today().toordinal() + sys.version_info.minor))


def pytest_report_header():
    return f"COURSE_TURN={TURN}"


# Beside other workers, one thread each: threads that wait for each other and for a core take up to ten times as long.
# Before anything imports torch or numpy, and for all processes that the tests start.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started by nohup or in the background of a script, we would ignore these, and so would each process that a test starts
# and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def course_style():
    """The course's style for the figures of one test, which are closed behind it."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    from servinglab.figures import style

    with mpl.rc_context():
        style.use()
        yield
        plt.close("all")


# Files whose tests use the same servers, or would disturb each other.
TOGETHER = {
    "test_answer.py": "triton", "test_server_supervisor.py": "triton", "test_encoders.py": "clip",
    "test_clip_serving.py": "clip", "test_vectors.py": "stores", "test_indexing.py": "stores",
    "test_documents.py": "stores", "test_llm_api_standin.py": "triton",
}  # fmt: skip
LONGEST = "test_run_notebooks.py"


def group(nodeid: str) -> str:
    """The tests that share a Triton stay in one worker, so that there is one of each kind a run. So do those of a file,
    so that what its fixtures make is made once. Runs of notebooks measure times: there is one of them at a time."""
    path = Path(nodeid.split("::")[0])
    if path.parent.name in ("integration", "reliability"):
        return "triton"
    return TOGETHER.get(path.name, path.name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """By `group`: pytest 9.2 overlooks the group that pytest-xdist 3.8 adds to the name of a marked test."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

        def _assign_work_unit(self, node) -> None:
            """The groups of most tests come first, but before them the one that takes longest."""
            if LONGEST in self.workqueue:
                self.workqueue.move_to_end(LONGEST, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items):
    for item in items:
        if "reliability" in item.path.parts:
            item.add_marker(pytest.mark.reliability)


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Path:
    """Hugging Face checkpoint of the default model."""
    from servinglab import assets

    return assets.resolve("smollm2")


@pytest.fixture(scope="session")
def smollm2_tokenizer_dir() -> Path:
    from servinglab import assets

    return assets.tokenizer("smollm2")


@pytest.fixture(scope="session")
def smollm2_engine_fp32() -> Path:
    from servinglab import assets

    return assets.engine("smollm2", "fp32")


@pytest.fixture(scope="session")
def smollm2_engine_int4() -> Path:
    from servinglab import assets

    return assets.engine("smollm2", "int4")


@pytest.fixture(scope="session")
def hf_tokenizer(smollm2_checkpoint):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_checkpoint)


@pytest.fixture(scope="session")
def hf_model(smollm2_checkpoint):
    """The reference of every exactness test: transformers' own model, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2_checkpoint, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> Path:
    """Default repository: fp32, decoupled."""
    from servinglab.repository import build_default

    return build_default(tmp_path_factory.mktemp("repository"), precision="fp32")


@pytest.fixture(scope="session")
def server(repository):
    from servinglab.server import TritonServer

    with TritonServer(repository) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    from triton_client import TritonClient

    with TritonClient(server.grpc_url, server.http_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def server_blocking(tmp_path_factory):
    """The same deployment, not decoupled: one response a request."""
    from servinglab.repository import build_default
    from servinglab.server import TritonServer

    root = tmp_path_factory.mktemp("repository_blocking")
    with TritonServer(build_default(root, precision="fp32", decoupled=False)) as running:
        yield running


@pytest.fixture(scope="session")
def client_blocking(server_blocking):
    from triton_client import TritonClient

    with TritonClient(server_blocking.grpc_url, server_blocking.http_url) as opened:
        yield opened
