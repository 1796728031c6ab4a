# The course's commands. `make` alone lists them.
# Options: PYTHON=python3.12 (interpreter), TORCH=cpu|cuda|any|auto (build of torch), ARGS="…" (to course run, course lab,
# pytest, bundle, lock), JOBS=3 (tests at the same time, with up to 4 GB of memory each)

PYTHON ?=
TORCH ?= auto
ARGS ?=
JOBS ?= 3
BIN = .venv/bin
export PYTHON TORCH

# Images of containers often set it. Then every process compiles again all that it imports, and takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup course test lab fetch edge bundle lint lock pages pictures site doctor gpu-course gpu-status \
  trtllm-image trtllm-engine trtllm-serve trtllm-course trtllm-down

help:
	@echo "make course   make the environment, fetch the weights, execute every notebook into build/"
	@echo "make test     make the environment, fetch the weights, run the whole test suite"
	@echo "make lab      make the environment, fetch the weights, open copies of the notebooks in JupyterLab (ARGS=05: that one)"
	@echo "make setup    make the environment alone (.venv)"
	@echo "make edge     make the environment that exports to ONNX for Edge-LLM (.edge, 1.5 GB)"
	@echo "make bundle   write everything for a machine without a network into build/bundle (ARGS=--help lists options)"
	@echo "make lint     check the style of the code, and show how large each part of it is"
	@echo "make lock     resolve the dependencies again into requirements/*.txt (needs uv); ARGS=--upgrade: the newest"
	@echo "make pages    write again what README.md and environment.yml derive from other files"
	@echo "make pictures draw the notebooks' pictures/*.svg again"
	@echo "make site     write the course as a web site into build/site (ARGS=\"--run build\": with the last run's outputs)"
	@echo "make doctor   what this machine can run"
	@echo "make trtllm-image trtllm-engine trtllm-serve trtllm-course   both images, an engine, a server, the notebooks in"
	@echo "              NVIDIA's container; make trtllm-down ends the server (Dockerfiles/README.md, gpu.yml)"

doctor: setup
	@$(BIN)/course doctor

setup:
	@bash requirements/setup.sh

edge:
	@bash requirements/setup.sh edge

fetch: setup
	@$(BIN)/course fetch

course: fetch
	@$(BIN)/course run $(ARGS)

test: fetch
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup $(ARGS)

lab: fetch
	@$(BIN)/course lab $(ARGS)

bundle: setup
	@$(BIN)/python tools/bundle/make_bundle.py $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/python tools/sizes.py

lock: setup
	@$(BIN)/python tools/lock.py $(ARGS)

pages: setup
	@$(BIN)/python tools/pages.py

pictures: setup
	@$(BIN)/python tools/draw_pictures.py

site: setup
	@$(BIN)/course build site $(ARGS)

# --- The steps of .github/workflows/gpu.yml, on a machine with an NVIDIA GPU; trtllm-… as in Dockerfiles/README.md ---

COMPOSE = COURSE_UID=$$(id -u) COURSE_GID=$$(id -g) docker compose
# papermill, then nbval, also after a failure: $(call notebooks,LANE,what a command there begins with)
notebooks = files=$$($(BIN)/python tools/status_table.py run $(1)) || exit; failed=0; \
  $(2) course run $$files -p lane=$(1) --out build/gpu/$(1) || failed=1; \
  $(2) python3 -m pytest -c tests/notebooks/nbval.ini --rootdir . --nbval-lax --nbval-current-env --nbval-cell-timeout 300 \
    --nbval-sanitize-with tests/notebooks/sanitize.cfg --junitxml build/gpu/logs/nbval-$(1).xml $$files && exit $$failed

gpu-course: fetch
	$(call notebooks,embedded,env SERVINGLAB_STATIC=1 PATH="$(CURDIR)/$(BIN):$$PATH")

gpu-status:
	@$(BIN)/python tools/status_table.py show $(LANE) >> "$${GITHUB_STEP_SUMMARY:-/dev/stdout}"

trtllm-image:
	mkdir -p build/gpu/logs $(addprefix build/trtllm/,checkpoints engines serving logs cache)
	$(COMPOSE) build build serve

# The recipe is for the TensorRT-LLM of the container. --entrypoint: else a banner would stand in it.
# A small share of the memory for the KV cache, because the notebooks start servers of their own beside this one.
trtllm-engine:
	$(COMPOSE) run --rm -T --entrypoint course build engine recipe smollm2 > build/gpu/logs/recipe.sh
	$(COMPOSE) run --rm -T build sh -e < build/gpu/logs/recipe.sh
	$(COMPOSE) run --rm -T build course repo build --out serving -p kv_cache_free_gpu_mem_fraction=0.2 \
	  --tokenizer-dir checkpoints/smollm2/hf --engine-dir engines/smollm2/bfloat16-tp1

trtllm-serve:
	$(COMPOSE) up --detach --wait --wait-timeout 1200 serve
	curl -sS --fail-with-body -d '{"text_input": "Rain is", "max_tokens": 12}' \
	  127.0.0.1:8000/v2/models/tensorrt_llm_bls/generate

trtllm-course: setup
	$(call notebooks,trtllm,$(COMPOSE) run --rm -T -e SERVINGLAB_STATIC=1 lab)

trtllm-down:
	-$(COMPOSE) logs --no-color > build/gpu/logs/serve.log
	$(COMPOSE) down
