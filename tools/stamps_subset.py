"""Choose the pictures of data/stamps from the whole set: every category, unchanged files, at most 8 MB.

python tools/stamps_subset.py
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "labs" / "vlm_clip"))

from cliplab.pictures import SUBSET, Picture, catalogue  # noqa: E402

LARGEST = 60_000  # bytes of one file
SMALL_CATEGORY = 20  # taken as a whole


def choose(pictures: list[Picture]) -> list[Picture]:
    """Every second picture of a large category, all of a small one, one picture of each caption."""
    chosen, captions = [], set()
    for category in sorted({p.category for p in pictures}):
        whole = [p for p in pictures if p.category == category]
        some = [p for p in whole if p.file.stat().st_size <= LARGEST] or whole
        for p in some if len(some) <= SMALL_CATEGORY else some[::2]:
            if p.caption not in captions:
                captions.add(p.caption)
                chosen.append(p)
    return sorted(chosen, key=lambda p: p.id)


def main() -> int:
    folder, entries, size = ROOT / SUBSET, [], 0
    shutil.rmtree(folder / "pictures", ignore_errors=True)
    for p in choose(catalogue("full")):
        copy = folder / "pictures" / f"{p.id}.png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(p.file, copy)
        size += copy.stat().st_size
        entries.append({"id": p.id, "file": copy.relative_to(folder).as_posix(), "caption": p.caption})
    text = json.dumps(entries, indent=1, ensure_ascii=False)
    (folder / "catalogue.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(entries)} pictures, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
