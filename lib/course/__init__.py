"""The `course` command: the manifest, running notebooks, pages, the doctor."""
