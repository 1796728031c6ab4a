"""The code of the repository's models (taught in notebook 03), run by the stub processes of Triton's Python backend.

`preprocessing.py`, `postprocessing.py` and `tensorrt_llm_bls.py` are whole `model.py` files: the repository builder
copies each into its model's version folder. `tensorrt_llm.py` is the backend (`reference_backend/backend`). Nothing
here imports torch.
"""
