# syntax=docker/dockerfile:1
# CPU:   docker build -t daskxml --build-arg COMMIT=$(git rev-parse HEAD) .
# CUDA:  docker build -t daskxml:cuda --build-arg EXTRA=cuda12 \
#            --build-arg BASE=nvidia/cuda:12.9.1-runtime-ubuntu24.04 .
# A package index of your own: --secret id=pip,src=$HOME/.config/pip/pip.conf
#
#   docker run --rm --user $(id -u) -v "$PWD:/data" daskxml bench smoke
#   docker run --rm --user $(id -u) -v "$PWD:/data" daskxml train train.txt --test test.txt
# A scheduler or a worker: --entrypoint dask ... scheduler (docker/compose.yaml has both)
#
# What is in an image is pinned, with hashes, in docker/cpu.lock, docker/cuda12.lock and
# docker/cuda13.lock.

# Any Debian or Ubuntu with Python 3.11 or newer.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG EXTRA=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DASKXML_KERNELS=0
RUN python3 -c 'import ensurepip' 2>/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv; }
RUN python3 -m venv /opt/daskxml && python3 -m venv /opt/build
WORKDIR /src
COPY docker/*.lock docker/
# The secret is there while a line runs, and in no layer.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/build/bin/pip install --require-hashes -r docker/build.lock && \
    /opt/daskxml/bin/pip install --require-hashes -r docker/${EXTRA}.lock
COPY pyproject.toml README.md LICENSE ./
COPY pipelines pipelines
COPY datasets datasets
COPY benchmarks/suites benchmarks/suites
COPY daskxml daskxml
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist . && \
    /opt/daskxml/bin/pip install --no-deps /dist/*.whl && \
    /opt/daskxml/bin/pip check
# The tests of other packages, and what installed them, are not for running.
RUN find /opt/daskxml/lib -type d \( -name tests -o -name test \) -path '*/site-packages/*' \
      -prune -exec rm -rf {} + && \
    /opt/daskxml/bin/python -m pip uninstall --yes --quiet setuptools pip && \
    /opt/daskxml/bin/daskxml --version

FROM ${BASE} AS run
ARG COMMIT=
RUN command -v python3 >/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates && \
      apt-get clean && rm -rf /var/lib/apt/lists/*; }
# Kernels are compiled when they are first used, by whoever --user says, into a folder that nobody
# else may write (daskxml/core/files.py); a volume keeps them. The processor that builds the image
# is not the one that runs it.
RUN useradd --create-home daskxml && mkdir -m 1777 /var/cache/daskxml && \
    mkdir /data && chown daskxml:daskxml /data
COPY --from=build /opt/daskxml /opt/daskxml
ENV PATH=/opt/daskxml/bin:$PATH DASKXML_KERNEL_CACHE=/var/cache/daskxml DASKXML_COMMIT=${COMMIT}
LABEL org.opencontainers.image.title=daskxml org.opencontainers.image.licenses=BSD-3-Clause \
      org.opencontainers.image.revision=${COMMIT}
USER daskxml
WORKDIR /data
EXPOSE 8786 8787
ENTRYPOINT ["daskxml"]
CMD ["--help"]

# docker build -t daskxml-serve --target serve . ; a model is mounted at /model
FROM run AS serve
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["daskxml", "serve", "/model", "--host", "0.0.0.0"]
CMD []

# What is built unless --target says otherwise.
FROM run
