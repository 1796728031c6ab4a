"""The executor's model on a CUDA device. Its modules need torch and triton; `device.py` decides whether it is used."""
