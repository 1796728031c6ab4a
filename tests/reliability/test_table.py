"""README.md of this folder names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_in_the_table_exists():
    named = re.findall(r"`([./\w]+\.py)::(\w+)`", (HERE / "README.md").read_text())
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in (HERE / file).read_text(), (file, name)
