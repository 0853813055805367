# Two commands a newcomer needs: make demo, make test. Everything installs itself into .venv from the lock.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test lint format bench lock audit sbom demo-vllm test-vllm clean

demo: $(READY)
	$(PY) -m vllm_launch experiment vllm_launch/experiments/demo.yaml

test: $(READY)
	$(PY) -m pytest -m "not vllm" -n 2 --dist loadfile --durations 25

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(READY)
	$(PY) -m benchmarks

# The same against real vLLM on CPU, in an environment of its own (2.2 GB) with a tiny model made on the spot.
demo-vllm: $(READY)
	$(PY) -m vllm_launch.cpu_vllm
	$(PY) -m vllm_launch experiment vllm_launch/experiments/demo-vllm.yaml

test-vllm: $(READY)
	$(PY) -m vllm_launch.cpu_vllm
	$(PY) -m pytest -m vllm

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tailgate needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The lock is made on the oldest Python supported; hashes of every platform's wheels are in it.
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet pip-tools
	$(VENV)-lock/bin/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --allow-unsafe \
	  --generate-hashes --extra dev --output-file requirements.lock pyproject.toml
	$(VENV)-lock/bin/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --allow-unsafe \
	  --generate-hashes --constraint requirements.lock --extra parquet --extra nvml --extra tokenizers \
	  --output-file requirements-image.lock pyproject.toml

# Known weaknesses of what the image installs, by the public database, which must be reachable: what could not be looked
# up is a failure too. And what the image is made of, in CycloneDX. Both in an environment of their own.
audit: $(VENV)-audit/.ready
	$(VENV)-audit/bin/pip-audit --strict --require-hashes --disable-pip -r requirements-image.lock

sbom: $(VENV)-audit/.ready
	mkdir -p build
	$(VENV)-audit/bin/cyclonedx-py requirements requirements-image.lock --pyproject pyproject.toml \
	  --output-reproducible --output-format JSON --output-file build/tailgate.cdx.json
	@echo "build/tailgate.cdx.json"

$(VENV)-audit/.ready:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.9" "cyclonedx-bom>=7"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-audit $(VENV)-vllm build *.egg-info
