"""The `tensorrtllm` backend of the embedded lane: a reference executor, and the Python models around it."""
