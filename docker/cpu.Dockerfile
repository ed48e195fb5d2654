# Strop on a CPU. From the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t strop:cpu .
#   docker run --rm -it -v "$PWD:/work" strop:cpu strop train run.yaml
FROM python:3.11-slim-bookworm

# bubblewrap isolates the programs of the reward `code`; git records the commit of a run's folder.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 strop

WORKDIR /opt/strop
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY strop strop
# --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's index of CPU wheels> leaves out gigabytes of CUDA libraries.
ARG PIP_EXTRA_INDEX_URL=""
RUN pip install --no-cache-dir -c constraints.txt '.[agents,optimizers,sql]'

USER 1000
WORKDIR /work
ENV OMP_NUM_THREADS=1 HF_HUB_DISABLE_TELEMETRY=1
CMD ["strop", "--help"]
