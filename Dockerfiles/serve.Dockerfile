# Serves a model repository of the trtllm lane: NVIDIA's container with the course's command and Python models in it.
#   docker compose up serve
#
# The same TAG and DIGEST as in build.Dockerfile: an engine runs only under the TensorRT that built it.
ARG TAG=26.07-trtllm-python-py3
ARG DIGEST=
FROM nvcr.io/nvidia/tritonserver:${TAG}${DIGEST:+@${DIGEST}}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# Twice, on purpose. Triton's Python models import servinglab from the image's own Python: without its dependencies, for
# numpy and tokenizers are there and must stay as they are. The command `course` has an environment of its own.
COPY pyproject.toml README.md LICENSE /opt/servinglab/
COPY lib /opt/servinglab/lib
RUN python3 -m venv --system-site-packages --without-pip /opt/course \
 && python3 -m pip --python /opt/course/bin/python install --no-cache-dir /opt/servinglab \
 && python3 -m pip install --no-cache-dir --no-deps /opt/servinglab \
 && ln -sf /opt/course/bin/course /usr/local/bin/course \
 && mkdir -p /work /home/course && chmod 1777 /work /home/course

ENV HOME=/home/course PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
USER 1000:1000
EXPOSE 8000 8001 8002
# Inside a container 127.0.0.1 is the container's own; compose.yaml publishes these ports on the host's 127.0.0.1 only.
CMD ["course", "serve", "serving", "--lane", "trtllm", "--all-interfaces"]
