# syntax=docker/dockerfile:1
# CPU:   docker build -t daskxml .
# CUDA:  docker build -t daskxml:cuda --build-arg BASE=nvidia/cuda:12.9.1-runtime-ubuntu24.04 .
# A package index of your own: --secret id=pip,src=$HOME/.config/pip/pip.conf
#
#   docker run --rm daskxml --version
#   docker run --rm -v "$PWD:/data" daskxml train quickstart --train train.txt --test test.txt
# A scheduler or a worker: --entrypoint dask ... scheduler

# Any Debian or Ubuntu with Python 3.11 or newer.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN python3 -c 'import ensurepip' 2>/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv; }
RUN python3 -m venv /opt/daskxml
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY pipelines pipelines
COPY datasets datasets
COPY daskxml daskxml
# The secret is there while this line runs and in no layer.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/daskxml/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM ${BASE}
RUN command -v python3 >/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates && \
      rm -rf /var/lib/apt/lists/*; }
COPY --from=build /opt/daskxml /opt/daskxml
ENV PATH=/opt/daskxml/bin:$PATH
RUN useradd --create-home daskxml && mkdir /data && chown daskxml:daskxml /data
USER daskxml
WORKDIR /data
EXPOSE 8786 8787
ENTRYPOINT ["daskxml"]
CMD ["--help"]
