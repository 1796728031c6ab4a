"""Parts of `tensorrt_llm_bls`: its calls, its replies, and the two threads beside those that serve."""
