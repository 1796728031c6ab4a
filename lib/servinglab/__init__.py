"""Helpers of the serving course."""

import os

# ONNX Runtime counts events in files under the home and the temporary folder when it is imported; nobody asked for it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
