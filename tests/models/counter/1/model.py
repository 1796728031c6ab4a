"""Test model, decoupled: sends max_tokens characters of the text (repeating it), one response each, from a thread.

FINAL comes alone as an empty response (as NVIDIA's BLS does) unless final_on_data is true. `fail_at` N sends an error
in place of piece N. A cancelled request appends its id to the file named by the environment variable COUNTER_CANCELLED.
"""

import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def scalar(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            job = (
                request.get_response_sender(),
                request.request_id(),
                scalar(request, "text_input", b"").decode(),
                int(scalar(request, "max_tokens", 1)),
                int(scalar(request, "delay_ms", 0)) / 1000,
                int(scalar(request, "fail_at", -1)),
                bool(scalar(request, "final_on_data", False)),
            )
            threading.Thread(target=self.run, args=job, daemon=True).start()

    def run(self, sender, request_id, text, count, delay, fail_at, final_on_data):
        for i in range(count):
            if sender.is_cancelled():
                path = os.environ.get("COUNTER_CANCELLED")
                if path:
                    with open(path, "a") as log:
                        log.write(f"{request_id} {i}\n")
                break
            time.sleep(delay)
            if i == fail_at:
                sender.send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError(f"counter fails at {i}")), flags=FINAL
                )
                return
            piece = np.array([[(text[i % len(text)] if text else str(i)).encode()]], dtype=object)
            last = final_on_data and i == count - 1
            response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)])
            sender.send(response, flags=FINAL if last else 0)
            if last:
                return
        sender.send(flags=FINAL)
