# Builds engines, and runs the notebooks beside TensorRT-LLM: NVIDIA's container with the course in it.
#   docker compose run --rm -T build course engine recipe smollm2 | docker compose run --rm -T build sh -e
#
# 26.07 is the newest container whose TensorRT-LLM (1.2.1) still has convert_checkpoint.py and trtllm-build; it needs
# driver 590 or newer. `course doctor` names the newest tag for an older driver. DIGEST pins the very image: sha256:…
ARG TAG=26.07-trtllm-python-py3
ARG DIGEST=
FROM nvcr.io/nvidia/tritonserver:${TAG}${DIGEST:+@${DIGEST}}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# What the converters of these families need and the image lacks. The constraint holds every version that is installed:
# a package that cannot do with it stops this build, instead of changing what TensorRT-LLM was tested with.
ARG FAMILIES="gpt llama gemma"
ARG EXAMPLES=/app/tensorrt_llm/examples
COPY Dockerfiles/missing_requirements.py /opt/
# hadolint ignore=SC2086
RUN python3 -m pip list --format=freeze > /opt/image-packages.txt \
 && python3 /opt/missing_requirements.py "${EXAMPLES}" ${FAMILIES} | tee /opt/family-requirements.txt \
 && python3 -m pip install --no-cache-dir --constraint /opt/image-packages.txt --requirement /opt/family-requirements.txt

# The course's own command in an environment of its own, which sees the image's packages and changes none of them.
COPY pyproject.toml README.md LICENSE /opt/servinglab/
COPY lib /opt/servinglab/lib
RUN python3 -m venv --system-site-packages --without-pip /opt/course \
 && python3 -m pip --python /opt/course/bin/python install --no-cache-dir "/opt/servinglab[notebooks]" \
 && /opt/course/bin/python -m ipykernel install --prefix /opt/course \
 && ln -s /opt/course/bin/course /usr/local/bin/course \
 && mkdir -p /work /home/course && chmod 1777 /work /home/course

# Any user id works (compose.yaml gives yours, so that the engines are yours); root is not needed.
ENV HOME=/home/course PYTHONDONTWRITEBYTECODE=1 JUPYTER_PREFER_ENV_PATH=1
WORKDIR /work
USER 1000:1000
CMD ["course", "engine", "recipe", "--help"]
