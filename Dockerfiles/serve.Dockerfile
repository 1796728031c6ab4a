# Serves a model repository of the trtllm lane: NVIDIA's container with the course's command and Python models in it.
#   docker compose up serve
#
# The same TAG and DIGEST as in build.Dockerfile: an engine runs only under the TensorRT that built it.
ARG TAG=26.07-trtllm-python-py3
ARG DIGEST=
FROM nvcr.io/nvidia/tritonserver:${TAG}${DIGEST:+@${DIGEST}}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# Into the image's own Python, from which Triton's Python models import the course. Nothing that is installed changes:
# the constraint holds it.
COPY pyproject.toml README.md LICENSE /opt/servinglab/
COPY lib /opt/servinglab/lib
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN python3 -m pip list --format=freeze > /opt/image-packages.txt \
 && python3 -m pip install --no-cache-dir --constraint /opt/image-packages.txt /opt/servinglab \
 && mkdir -p /work /home/course/.cache/servinglab/run && chmod -R 1777 /work /home/course

# A user id without a name works, too: torch and mpirun look in these variables. Folders on the way to a mount are made
# above, because Docker would make them as root.
ENV HOME=/home/course USER=course LOGNAME=course PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
USER 1000:1000
EXPOSE 8000 8001 8002
# Inside a container 127.0.0.1 is the container's own; compose.yaml publishes these ports on the host's 127.0.0.1 only.
CMD ["course", "serve", "serving", "--lane", "trtllm", "--all-interfaces"]
