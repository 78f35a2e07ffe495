"""The environment of a cell's process: what it inherits, and the variables that a matrix sets for it.

Inherited values are recorded as hashes, since a path may contain a user's name: equal hashes mean equal values. Those
of a matrix are a part of the cell's settings, and are stored as they are written: so none may contain a credential.
A matrix sets options of backends and libraries by itself, other variables only if the command allows them by name.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from keras_matrix.records.backends import TF_KERAS_SWITCH

# They determine which libraries a backend loads, such as another cuDNN or CUDA than that of its own packages.
RECORDED = ("CUDA_HOME", "LD_LIBRARY_PATH")
CUDA_CACHE = "CUDA_CACHE_PATH"
# The number of threads of the libraries that compute.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
# Marks every process of a cell with the folder it works for, so that what a killed runner left can be found.
MARK = "KERAS_BENCHMARK_RESULTS"
# `http://user:password@proxy:3128`, `https://token@host/repository`, and without a scheme `user:password@proxy`.
# A password may contain a slash or an @.
USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)\S*@|[^/\s:@=]+:\S*@")

# Variables that contain or lead to credentials: of clouds, registries, package indexes, keys and agents. A value that
# is an address with a user, as of a proxy or a git remote, may contain a password.
CREDENTIAL = re.compile(
    r"(AWS|AZURE|ARM|GCP|GOOGLE|GCLOUD|CLOUDSDK|ACTIONS)_.*|SSH_AUTH_SOCK|KUBECONFIG|NETRC|DOCKER_CONFIG|.*_PWD|"
    r".*(TOKEN(?!IZERS)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(API|ACCESS|ACCOUNT|PRIVATE|SIGNING|ENCRYPTION)_?KEY).*",
    re.IGNORECASE,
)
# Values by which services know their users: of GitHub, GitLab, Hugging Face, Slack, AWS, of APIs, and signed ones.
_TOKEN = re.compile(
    r"\b(gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ya29\.|eyJ[\w-]+\.eyJ)[\w.-]{16}|\bhf_[A-Za-z]{30}|\bsk-[\w-]*[A-Za-z0-9]{20}"
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MOST_CHARACTERS = 1000  # of the variables of a cell together
# What decides them, where it is not the variable.
DECIDED_BY = {
    "KERAS_BACKEND": "backends",
    TF_KERAS_SWITCH: "the environment named by python",
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"), "device and gpus"),
    **dict.fromkeys(("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "KERAS_TORCH_DEVICE"), "device"),
    **dict.fromkeys(THREAD_VARIABLES, "threads"),
    **dict.fromkeys(("HOME", "KERAS_HOME", "TMPDIR", CUDA_CACHE, "CUDA_CACHE_MAXSIZE"), "the cell"),
    **dict.fromkeys(("MPLBACKEND", "TF_CPP_MIN_LOG_LEVEL"), "the cell"),
}
_OF_THE_CELL = re.compile(r"KERAS_BENCHMARK_.*")
# They decide which code a process loads.
_LOADING = re.compile(r"PATH|IFS|ENV|PYTHON.*|(BASH|LD|DYLD|GCONV)_.*")
# Options of backends, of what they compute with, and of libraries that programs report to or read from.
_BACKENDS = "XLA|TF|JAX|LIBTPU|TORCH[A-Z]*|PYTORCH|KERAS"
_COMPUTING = "OMP|KMP|GOMP|MKL|DNNL|ONEDNN|OPENBLAS|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|MALLOC"
_LIBRARIES = "WANDB|MLFLOW|COMET|HF|TRANSFORMERS|TOKENIZERS|DATASETS|TFDS|KAGGLEHUB|TQDM"
KNOWN = re.compile(rf"({_BACKENDS}|{_COMPUTING}|{_LIBRARIES})_[A-Z0-9_]+")


def variables_text(variables: Mapping[str, str]) -> str:
    """Return variables as words NAME=VALUE that a shell reads, in the order of their names."""
    return shlex.join(f"{name}={value}" for name, value in sorted(variables.items()))


def variables_of(text: str) -> dict[str, str]:
    """Return the variables of such a text. Raises ValueError for a text that is none."""
    pairs = [word.partition("=") for word in shlex.split(text)]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("a word without =")  # it may be a credential
    return {name: value for name, _, value in pairs}


def variables_problem(variables: object) -> str | None:
    """Return what is wrong with the variables of a matrix, a mapping or a text of them; None if they may be set."""
    if isinstance(variables, str):
        try:
            variables = variables_of(variables)
        except ValueError as error:
            return str(error)
    if not isinstance(variables, Mapping):
        return f"{variables!r:.60}"
    problems = (_variable_problem(name, value) for name, value in variables.items())
    if problem := next(filter(None, problems), None):
        return problem
    length = len(variables_text({name: str(value) for name, value in variables.items()}))
    return f"{length} characters, of at most {MOST_CHARACTERS}" if length > MOST_CHARACTERS else None


def _variable_problem(name: object, value: object) -> str | None:
    """Return why a variable cannot be set; never with the value of one that may be a credential."""
    if not isinstance(name, str) or not VARIABLE.fullmatch(name):
        return f"{name!r:.60}, which is no name of a variable"
    if CREDENTIAL.fullmatch(name) or (isinstance(value, str) and (has_user(value) or _TOKEN.search(value))):
        advice = "download what needs it before, or switch that off, as WANDB_MODE=offline does"
        return f"{name}, a credential by its name or value, and records store values; {advice}"
    if name in DECIDED_BY or _OF_THE_CELL.fullmatch(name):
        return f"{name}, which is decided by {DECIDED_BY.get(name, 'the runner')}"
    if _LOADING.fullmatch(name):
        return f"{name}, which decides what code a process loads; name an environment with python instead"
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).isprintable():
        return f"{name}: {value!r:.60}, which is no printable text; write it in quotes"
    return None


def not_known(text: str) -> list[str]:
    """Return the names of variables that a matrix sets only if the command allows them."""
    return [name for name in variables_of(text) if not KNOWN.fullmatch(name)]


def recorded(environment: Mapping[str, str]) -> list[str]:
    """Return `NAME=sha256:...` for each inherited variable that may change a figure."""
    digests = {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        for name in RECORDED
        if (value := environment.get(name))
    }
    return [f"{name}=sha256:{digest}" for name, digest in digests.items()]


@contextmanager
def kept(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Restore the recorded variables at the end: OpenCV, which Keras imports if it is there, changes one of them."""
    previous_values = {name: environment[name] for name in RECORDED if name in environment}
    try:
        yield
    finally:
        for name in RECORDED:
            environment.pop(name, None)
        environment.update(previous_values)


def cuda_cache_state(environment: Mapping[str, str]) -> str | None:
    """Return whether the run's cache of kernels compiled by the driver is `empty` or `filled`; None without one."""
    folder = environment.get(CUDA_CACHE)
    if not folder or not Path(folder).is_dir():
        return None
    return "filled" if any(Path(folder).iterdir()) else "empty"


def has_user(text: str) -> bool:
    """Return whether a text contains an address with a user."""
    return USER.search(text) is not None


def without_user(text: str) -> str:
    """Return a text whose addresses name no user."""
    return USER.sub(lambda match: match["scheme"] or "", text)
