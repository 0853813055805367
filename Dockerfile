# One image for every part: master, worker, exporter and the embedded engine.
#   docker build -t tailgate .
#   docker build -t tailgate --build-arg PYTHON_IMAGE=python@sha256:... .     (pinned by digest)
# Nothing here needs a shell, at build time or later: both stages may be built on an image that has none.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN ["python", "-m", "venv", "/opt/venv"]
COPY requirements-image.lock /opt/requirements-image.lock
RUN ["/opt/venv/bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:", "-r", "/opt/requirements-image.lock"]
COPY LICENSE NOTICE /app/
COPY tailgate /app/tailgate
COPY workloads /app/workloads
COPY exporters /app/exporters
COPY locustfiles /app/locustfiles
COPY vllm_launch /app/vllm_launch
COPY docker /app/docker
RUN ["/opt/venv/bin/python", "/app/docker/finish_image.py", "/opt/venv", "/app"]

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Tailgate" \
      org.opencontainers.image.description="Load tests for LLM serving whose tail latencies can be trusted" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
# Only these two are ever written to: a volume for results, and memory for what libraries cache.
VOLUME ["/app/results"]
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /app
USER 10001:10001
EXPOSE 5557 8000 8089
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/app/docker/healthcheck.py"]
ENTRYPOINT ["locust"]
CMD ["-f", "locustfiles/chat.py"]
