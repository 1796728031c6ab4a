# Builds engines, and runs the notebooks beside TensorRT-LLM and Triton: NVIDIA's container with the course in it.
#   docker compose run --rm build course engine recipe smollm2
#
# 26.07 is the newest container whose TensorRT-LLM (1.2.1) still has convert_checkpoint.py and trtllm-build; it needs
# driver 590 or newer. `course doctor` names the newest tag for an older driver. DIGEST pins the very image: sha256:…
ARG TAG=26.07-trtllm-python-py3
ARG DIGEST=
FROM nvcr.io/nvidia/tritonserver:${TAG}${DIGEST:+@${DIGEST}}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# What the converters of these families need and the image lacks.
ARG FAMILIES="gpt llama gemma"
ARG EXAMPLES=/app/examples
COPY Dockerfiles/missing_requirements.py /opt/
COPY pyproject.toml README.md LICENSE /opt/servinglab/
COPY lib /opt/servinglab/lib

# Into the image's own Python, whichever that is (the system's up to 26.02, then a virtual environment), because torch,
# TensorRT-LLM and the course must see each other. The constraint holds every version that is installed: a package that
# cannot do with it stops this build, instead of changing what TensorRT-LLM was tested with.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
# hadolint ignore=SC2086
RUN python3 -m pip list --format=freeze > /opt/image-packages.txt \
 && python3 /opt/missing_requirements.py "${EXAMPLES}" ${FAMILIES} | tee /opt/family-requirements.txt \
 && python3 -m pip install --no-cache-dir --constraint /opt/image-packages.txt \
      --requirement /opt/family-requirements.txt "/opt/servinglab[container]" \
 && mkdir -p /work /home/course/.cache/servinglab/run && chmod -R 1777 /work /home/course

# Any user id works (compose.yaml gives yours, so that the engines are yours), also one without a name, for which torch
# and mpirun look in these variables. Root is not needed. Folders on the way to a mount are made above, for everyone:
# Docker would make them as root, and flashinfer, for one, writes into ~/.cache.
ENV HOME=/home/course USER=course LOGNAME=course PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
USER 1000:1000
CMD ["course", "engine", "recipe", "--help"]
