"""`reward.worker`: resources and environment of the processes that compute reward functions."""

from __future__ import annotations

from pydantic import Field

from strop.config.schema.base import Section

WORKER_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LC_*", "TMPDIR", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_*"),
    *("*_proxy", "*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*", "SENTENCE_TRANSFORMERS_*", "TOKENIZERS_*", "NLTK_DATA"),
    *(
        "CUDA_*",
        "NVIDIA_*",
        "HIP_*",
        "ROCR_*",
        "TORCH*",
        "PYTORCH_*",
        "TRITON_*",
        "OMP_*",
        "MKL_*",
        "OPENBLAS_*",
    ),
    *("*_API_KEY", "*_API_BASE", "*_BASE_URL", "STROP_*"),
)


class RewardWorkerConfig(Section):
    """Resources and environment of each process that computes reward functions."""

    memory_gb: float | None = Field(None, gt=0)
    """Maximum private memory of one process, in GB; null is half of the machine's memory. Enforced on Linux
    only."""
    file_gb: float = Field(16.0, gt=0)
    """Maximum size of a file that a process writes, in GB."""
    processes: int = Field(4096, gt=0)
    """Maximum number of processes and threads that this user may have above the number at the worker's start.
    The kernel exempts root."""
    environment: tuple[str, ...] = WORKER_ENVIRONMENT
    """Patterns of the environment variables that functions can read; others are removed. `["*"]` keeps all."""
    more_environment: tuple[str, ...] = ()
    """Further such patterns, in addition to `environment`."""
