"""Tests of the labs import a lab's modules as its notebooks do: from the lab's folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "labs" / "vlm_clip"))
