"""The request and the answer of `tensorrt_llm`: tensors in, tensors out, and the thread that sends."""
