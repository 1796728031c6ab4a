"""Command lines of the load generators, and what AIPerf's export and the power counters say."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from servinglab.errors import CourseError
from servinglab.loadtest import commands, power

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import aiperf  # noqa: E402


def test_perf_analyzer_streams_over_grpc_with_named_inputs_only():
    assert commands.as_shell(commands.perf_analyzer("data.json")).replace(" \\\n ", "") == (
        "perf_analyzer -m tensorrt_llm_bls -i grpc -u localhost:8001 --streaming --input-data data.json "
        "--concurrency-range 1:8:1 --measurement-interval 10000 --profile-export-file profile.json"
    )
    open_loop = commands.perf_analyzer("data.json", rates=(1, 9, 2))
    assert "--request-rate-range 1:9:2 --request-distribution poisson" in " ".join(open_loop)
    assert "--concurrency-range" not in open_loop


def test_input_data_sends_the_three_inputs_of_a_stream_and_nothing_else():
    rows = json.loads(commands.input_data(["Hé"], 8))["data"]
    assert rows == [{"text_input": ["Hé"], "max_tokens": [8], "stream": [True]}]


def test_genai_perf_leaves_out_the_flag_that_sends_min_length():
    text = " ".join(commands.genai_perf("/models/tokenizer", concurrency=4, requests=9))
    assert text.startswith("genai-perf profile -m ensemble --service-kind triton --backend tensorrtllm --streaming")
    assert "--concurrency 4" in text and "deterministic" not in text


LOAD = {"concurrency": 4, "requests": 8, "warmup": 2, "input_tokens": 64, "output_tokens": 12}


def test_aiperf_is_told_to_generate_as_many_tokens_as_it_counts():
    words = " ".join(commands.aiperf("folder", url="http://127.0.0.1:9000", **LOAD))
    assert "--endpoint-type chat --streaming --url http://127.0.0.1:9000 --tokenizer folder" in words
    assert "--output-tokens-mean 12" in words and "--extra-inputs min_tokens:12" in words and "--concurrency 4" in words


def test_a_command_for_the_shell_is_the_same_command():
    command = commands.aiperf("my folder", url="http://127.0.0.1:9000", **LOAD)
    assert shlex.split(commands.as_shell(command).replace("\\\n", "")) == command


def test_aiperf_export_is_read_by_name_and_what_is_missing_is_left_out(tmp_path):
    export = {"time_to_first_token": {"unit": "ms", "avg": 120.0004, "p50": 110, "p99": None}, "version": "x"}
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(export))
    assert aiperf.read(path) == {"ttft_ms": {"avg": 120.0, "p50": 110}}


@pytest.fixture
def export():
    """What AIPerf 0.13.0 wrote about nine requests, of which its server refused three; most of its metrics left out."""
    return json.loads((Path(__file__).parent / "data" / "aiperf_export.json").read_text())


def test_requests_of_aiperf_that_failed_are_counted_and_said(tmp_path, export):
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(export))
    with pytest.raises(CourseError, match="^3 of AIPerf's 9 requests failed.*: 500 Internal Server Error: .*error"):
        aiperf.read(path)
    del export["error_request_count"]  # so it looks without errors
    path.write_text(json.dumps(export | {"error_summary": []}))
    found = aiperf.read(path)
    assert found["requests"] == {"avg": 6.0} and found.keys() == aiperf.METRICS.keys()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(code of Python) -> AIPerf is this instead."""

    def install(code):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "aiperf").write_text(f"#!{sys.executable}\n{code}")
        (tmp_path / "bin" / "aiperf").chmod(0o755)
        (tmp_path / "complete").touch()
        monkeypatch.setattr(aiperf, "_folder", lambda: tmp_path)

    return install


def test_the_numbers_of_aiperf_are_those_of_the_whole_run_not_of_its_warm_up(tmp_path, program):
    """It writes a file of the same name for each phase; and one may be there from an earlier run."""
    program(
        "import json, pathlib\n"
        f"for folder, n in (('.', 40), ('phases/profiling', 40), ('phases/warmup', 4)):\n"
        f"    path = pathlib.Path({str(tmp_path)!r}, 'out', folder)\n"
        "    path.mkdir(parents=True, exist_ok=True)\n"
        "    (path / 'profile_export_aiperf.json').write_text(json.dumps({'request_count': {'avg': n}}))\n"
    )
    assert aiperf.profile(["aiperf"], tmp_path / "out") == {"requests": {"avg": 40}}
    program("")
    with pytest.raises(CourseError, match="without a result: it said nothing"):
        aiperf.profile(["aiperf"], tmp_path / "out")


def test_a_run_of_aiperf_in_which_all_requests_failed_says_so(tmp_path, program):
    said = "All 9 inference request(s) failed; no successful responses were collected."
    lines = f"00:44:02.064 ERROR    {said} (system_controller.py:2370)\nLog File: aiperf.log\n"
    program(f"print({lines!r})\nraise SystemExit(1)\n")
    with pytest.raises(CourseError) as caught:
        aiperf.profile(["aiperf"], tmp_path)
    assert str(caught.value) == f"AIPerf ended without a result: {said}"


def test_aiperf_that_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(aiperf, "cache_dir", lambda: tmp_path)
    with pytest.raises(CourseError, match="not installed"):
        aiperf.profile(["aiperf"], tmp_path)


def counters(folder, **energy):
    for name, (value, most) in energy.items():
        package = folder / name.replace("_", "-", 1).replace("_", ":")
        package.mkdir(parents=True, exist_ok=True)
        (package / "energy_uj").write_text(str(value))
        (package / "max_energy_range_uj").write_text(str(most))


def test_energy_is_the_difference_of_the_packages_counters_wrapped_or_not(tmp_path):
    counters(tmp_path, intel_rapl_0=(9_000_000, 10_000_000), intel_rapl_1=(0, 10_000_000))
    counters(tmp_path, intel_rapl_0_0=(5, 10))  # a part of package 0, which must not be counted twice
    with power.Meter(tmp_path, smi=("false",)) as meter:
        counters(tmp_path, intel_rapl_0=(1_000_000, 10_000_000), intel_rapl_1=(3_000_000, 10_000_000))
        counters(tmp_path, intel_rapl_0_0=(9, 10))
    assert meter.source == "RAPL" and meter.readable and meter.joules == pytest.approx(5.0)


def test_energy_of_gpus_is_watts_times_seconds():
    with power.Meter(smi=("printf", "100.5\n49.5\n")) as meter:
        pass
    assert meter.source == "nvidia-smi"
    assert meter.joules is None or meter.joules == pytest.approx(150 * meter.seconds)


@pytest.mark.parametrize("smi", [("false",), ("printf", "[N/A]"), ("no-such-program",)])
def test_energy_that_cannot_be_read_is_none_with_a_reason(tmp_path, smi):
    with power.Meter(tmp_path / "none", smi=smi) as meter:
        pass
    assert meter.source.startswith("not readable: ") and not meter.readable
    assert meter.joules is None and meter.seconds > 0
