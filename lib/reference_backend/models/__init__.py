"""The Python-backend models that a repository holds (taught in notebook 03).

`preprocessing.py`, `postprocessing.py`, `tensorrt_llm.py` and `tensorrt_llm_bls.py` are whole `model.py` files: the
repository builder copies each into its model's version folder. Names that start with an underscore are their shared
parts. They run inside Triton's stub process, so nothing here imports torch or the notebook side of the course.
"""
