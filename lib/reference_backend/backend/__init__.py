"""What Triton finds as <backend-dir>/tensorrtllm; a package, so that a wheel holds it."""
