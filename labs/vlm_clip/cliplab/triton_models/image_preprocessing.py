"""`image_preprocessing`: picture files to what the vision tower takes; an empty string stands for "no picture".

`image_state` says of each row "given", "none", or what is wrong with the picture. That is data, no error of Triton's:
when a step of an ensemble fails while a parallel one runs, Triton 24.10 may never answer again. The last step, where
nothing runs beside it, makes the error of it. `prepare.py` beside this file is the module that the training used, too.
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
        states = np.array([[self._read(data, pixels[row]).encode()] for row, data in enumerate(files)], dtype=object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("pixel_values", pixels), pb_utils.Tensor("image_state", states)]
        )

    def _read(self, data, target):
        """Fill `target` [3, SIZE, SIZE] with the picture; its state."""
        if not data:
            return "none"
        try:
            target[:] = to_array(open_picture(data))
        except PictureError as error:
            return str(error)
        except Exception as error:  # a fault of ours
            pb_utils.Logger.log_error(f"image_preprocessing: {type(error).__name__}: {error}")
            return f"The picture could not be prepared ({type(error).__name__}); the server's log says more."
        return "given"
