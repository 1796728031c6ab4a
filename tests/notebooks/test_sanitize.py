"""Every rule of sanitize.cfg, both ways: it covers what differs between good runs and spares what lessons are about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbval.plugin import get_sanitize_patterns

RULES = get_sanitize_patterns((Path(__file__).parent / "sanitize.cfg").read_text(encoding="utf-8"))

# Placeholder → pairs (what a run may print, what is compared).
COVERED = {
    "PROGRESS": [
        ("Executing:  40%|████      | 4/10 [00:02<00:03,  1.9cell/s]", "PROGRESS"),
        ("smollm2 ━━━━━━━━╸━━━━ 61% 98.1/160 MB", "PROGRESS"),
    ],
    "LOGLINE": [("I1127 23:18:02.123456 4711 server.cc:674]", "LOGLINE server.cc:674]")],
    "DATE": [
        ("2025-11-27", "DATE"),
        ("2025-11-27 23:18", "DATE"),
        ("2025-11-27T23:18:02.5+01:00", "DATE"),
        ("at 2024-02-29 01:02:03,456 UTC.", "at DATE."),
    ],
    "TIME": [("23:18:02", "TIME"), ("took 0:01:07.25", "took TIME")],
    "UUID": [("550e8400-e29b-41d4-a716-446655440000", "UUID")],
    "HEXID": [
        ("d41d8cd98f00b204e9800998ecf8427e", "HEXID"),
        ("sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "sha256 HEXID"),
    ],
    "ADDRESS": [("<object at 0x7f3a2c1d9e50>", "<object at ADDRESS>")],
    "HOST": [
        ("127.0.0.1:8001", "HOST"),
        ("http://localhost:45123/v2", "http://HOST/v2"),
        ("ipv4:127.0.0.1:39455: connection refused", "ipv4:HOST: connection refused"),
        ("[::1]:8001", "HOST"),
        ("10.20.30.40:8001", "HOST"),
        ("listening on 0.0.0.0", "listening on HOST"),
    ],
    r"\1\2PORT": [
        ("on port 43817", "on port PORT"),
        ('"http_port": 8000', '"http_port": PORT'),
        ("port=8001", "port=PORT"),
    ],
    r"\1\2PID": [("pid 4711", "pid PID"), ("'pid': 99", "'pid': PID"), ("process 31337 ended", "process PID ended")],
    "PATH": [
        ("/home/ada/course/build", "PATH"),
        ("wrote /tmp/tmpx1y2z3w4/a.txt, done", "wrote PATH, done"),
        ("'/root/.cache/servinglab'", "'PATH'"),
        ("/Users/ada/a.py:12", "PATH:12"),
        ("$TMPDIR/tmpabcdefgh/model_repository", "PATH"),
        ("tokenizer: $SERVINGLAB_CACHE/smollm2", "tokenizer: PATH"),
        ("~/.cache/servinglab/models", "PATH"),
        ("/dev/shm/servinglab_12", "PATH"),
        ("in /tmp now", "in PATH now"),
    ],
    "TMPNAME": [("folder tmp0a_b1z9q", "folder TMPNAME")],
    "GPU": [
        ("NVIDIA H100 80GB HBM3", "GPU"),
        ("NVIDIA GeForce RTX 4090", "GPU"),
        ("NVIDIA A100-SXM4-80GB", "GPU"),
        ("Tesla T4", "GPU"),
        ("NVIDIA RTX A6000", "GPU"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "GPU"),
    ],
    "SPEED": [
        ("42.7 tokens/s", "SPEED"),
        ("1,143 tok/s in all", "SPEED in all"),
        ("98.1 MB/s", "SPEED"),
        ("3 requests per second", "SPEED"),
    ],
    "SIZE": [("134.5 MB", "SIZE"), ("269 MiB", "SIZE"), ("8GB", "SIZE"), ("134515712 bytes", "SIZE")],
    "DURATION": [
        ("121 ms", "DURATION"),
        ("0.25 s", "DURATION"),
        ("3.1e-05 seconds", "DURATION"),
        ("12.5µs,", "DURATION,"),
        ("about 2 minutes.", "about DURATION."),
    ],
    r"\1DURATION": [
        ('"seconds": 1.25,', '"seconds": DURATION,'),
        ('"first_token_ms": 121', '"first_token_ms": DURATION'),
    ],
    "CPU": [
        ("cpu, AMD EPYC 7763 64-Core Processor, more", "cpu, CPU, more"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "CPU"),
    ],
    "CORES": [("2 cores", "CORES"), ("1 core", "CORES"), ("16 CPU cores", "CORES")],
    "FIGURE": [("<Figure size 825x374 with 2 Axes>", "FIGURE")],
}

# Texts of lessons: a rule that touches one of these makes nbval blind to a real difference.
SPARED = [
    "POST /v2/models/ensemble/generate_stream",
    "preprocessing/1/model.py",
    "model_repository/tensorrt_llm/config.pbtxt, line 12",
    "_assets/smollm2/tokenizer",
    "shape [1, 48], datatype INT32",
    "unexpected shape for input 'text_input': expected [-1,1], got [1]",
    "48 tokens, 48 chunks, in order",
    "4 streams, 8 steps, 3 sets",
    "the request is 135 bytes",
    "0a 10 74 65 6e 73 6f 72",
    "0a1074656e736f7272745f6c6c6d",
    "tag 0x0a, field 1",
    "token ids [504, 2971, 314, 28]",
    "05.1 not attempted: replace the stub in the cell above, then run both cells again",
    "max_batch_size: 8",
    "min_tokens 2, min_length 2",
    "seed 0, temperature 0.7, top_p 0.9",
    "Triton 2.51.0, TensorRT 10.3.0.26, CUDA 12.6",
    "nvidia-pytriton 0.7.0",
    "version 24.10 of NVIDIA Triton, NVIDIA TensorRT-LLM 1.2",
    "SmolLM2-135M-Instruct, T5, H.264",
    "a port is a number; the process ends",
    "ratio 1:2, line 12:3",
    "true, false, null, 1e-06",
    "model 2 is in /v2 and not in /",
    "stop words are matched as text: 12 min-length words",
]


def sanitized(text: str) -> str:
    for regex, replacement in RULES:
        text = re.sub(regex, replacement, text)
    return text


def test_every_rule_is_read_and_has_examples():
    """nbval skips a rule whose two lines are not exactly as it wants them, silently."""
    written = (Path(__file__).parent / "sanitize.cfg").read_text(encoding="utf-8").count("\nregex:")
    assert len(RULES) == written == len(COVERED)
    assert [replacement for _, replacement in RULES] == list(COVERED)


@pytest.mark.parametrize("regex, replacement", RULES, ids=[name for _, name in RULES])
def test_rule_covers_its_examples_by_itself(regex, replacement):
    for text, expected in COVERED[replacement]:
        assert re.sub(regex, replacement, text) == expected


@pytest.mark.parametrize("text, expected", [pair for pairs in COVERED.values() for pair in pairs])
def test_all_rules_together_give_the_same(text, expected):
    assert sanitized(text) == expected


@pytest.mark.parametrize("text", SPARED)
def test_lessons_are_spared(text):
    assert sanitized(text) == text


def test_sanitizing_twice_changes_nothing():
    for pairs in COVERED.values():
        for text, _ in pairs:
            assert sanitized(sanitized(text)) == sanitized(text)
