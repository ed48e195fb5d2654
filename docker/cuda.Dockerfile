# Strop on NVIDIA GPUs, with vLLM and Ray. From the root of the repository:
#   docker build -f docker/cuda.Dockerfile -t strop:cuda .
#   docker run --rm -it --gpus all --shm-size 16g -v "$PWD:/work" strop:cuda strop train run.yaml
# torch's wheels bring the CUDA libraries; the host needs a driver and the NVIDIA container toolkit.
FROM python:3.11-slim-bookworm

# bubblewrap isolates the programs of the reward `code`; git records the commit of a run's folder; compilers that
# libraries call at run time (Triton) need gcc.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap build-essential git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 strop

WORKDIR /opt/strop
COPY pyproject.toml README.md LICENSE ./
COPY strop strop
# Without constraints.txt: a version of vLLM needs one version of torch, which pip selects with it.
ARG EXTRAS=agents,optimizers,ray,sql,vllm
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[$EXTRAS]"

USER 1000
WORKDIR /work
ENV HF_HUB_DISABLE_TELEMETRY=1
CMD ["strop", "--help"]
