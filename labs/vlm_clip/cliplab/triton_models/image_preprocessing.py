"""`image_preprocessing`: picture files to what the vision tower takes; an empty string stands for "no picture".

`prepare.py` beside this file is the module that the training used, too.
"""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils
from prepare import SIZE, PictureError, open_picture, to_array


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()[:, 0]
        # Not a number goes where no picture is: no real pixel is that, and a mistake downstream cannot stay unseen.
        pixels = np.full((len(files), 3, SIZE, SIZE), np.nan, np.float32)
        for row, data in enumerate(files):
            try:
                if data:
                    pixels[row] = to_array(open_picture(data))
            except PictureError as error:
                where = f"Picture {row + 1} of {len(files)}: " if len(files) > 1 else ""
                sentence = pb_utils.TritonError(f"{where}{error}", pb_utils.TritonError.INVALID_ARG)
                return pb_utils.InferenceResponse(output_tensors=[], error=sentence)
        has_image = np.array([[len(data) > 0] for data in files])
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("pixel_values", pixels), pb_utils.Tensor("has_image", has_image)]
        )
