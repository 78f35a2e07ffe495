"""The images: their labels and contents, and what they must not contain."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from tests.docker.containers import IMAGES, ROOT, SERVICES, docker, need
from tests.scripts import script

pytestmark = [pytest.mark.docker, pytest.mark.parametrize("service", SERVICES)]


def inspected(service: str) -> dict[str, Any]:
    """Return the engine's description of an image."""
    need(service)
    (image,) = json.loads(docker("image", "inspect", f"{IMAGES}:{service}").stdout)
    found: dict[str, Any] = image["Config"]
    return found


def output_of(service: str, *command: str) -> str:
    """What a command prints in a container of an image."""
    need(service)
    program, *arguments = command
    done = docker("run", "--rm", "--network", "none", "--entrypoint", program, f"{IMAGES}:{service}", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_image_has_its_labels(service: str) -> None:
    labels = inspected(service)["Labels"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert labels["org.opencontainers.image.title"] == f"{IMAGES}:{service}"
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]


def test_image_has_a_user_and_no_health_check(service: str) -> None:
    image = inspected(service)
    assert image["User"] == "10001:10001"
    assert image.get("Healthcheck") in (None, {"Test": ["NONE"]})


def test_image_lists_its_contents(service: str) -> None:
    """Every distribution and every Debian package with its version. Mutation: `sbom.py` leaves out `packages()`."""
    bill = json.loads(output_of(service, "cat", inspected(service)["Labels"]["keras-benchmark.sbom"]))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {
        (one["purl"].partition(":")[2].partition("/")[0], one["name"], one["version"]) for one in bill["components"]
    }
    script = "import importlib.metadata as m; [print(d.name + '==' + d.version) for d in m.distributions()]"
    python = {line.partition("==")[::2] for line in output_of(service, "python", "-c", script).splitlines()}
    debian = {tuple(line.split("\t")) for line in output_of(service, "dpkg-query", "-W").splitlines()}
    assert {"keras", "keras-matrix"} <= {name for name, _ in python}
    assert listed == {
        *(("pypi", name.lower().replace("_", "-"), version) for name, version in python),
        *(("deb", name.partition(":")[0], version) for name, version in debian),
    }


def test_image_has_keras_hub_without_tensorflow_text(service: str) -> None:
    """In the images of JAX and PyTorch without TensorFlow, too. Mutation: `ci/lock` has no override."""
    absent = ["tensorflow_text"] if service.startswith("tf") else ["tensorflow", "tensorflow_text"]
    family = service.partition("-")[0]
    backend = {"tf": "tensorflow"}.get(family, family)
    script = (
        f"import os; os.environ['KERAS_BACKEND'] = {backend!r}; "
        "import importlib.util as util; from keras_matrix.models.language_models.hub import keras_hub; "
        f"print(keras_hub().models.GemmaBackbone.__name__, [util.find_spec(name) for name in {absent}])"
    )
    assert output_of(service, "python", "-c", script) == f"GemmaBackbone {[None] * len(absent)}\n"


def test_an_images_python_is_the_documented_one(service: str) -> None:
    version = ".".join(output_of(service, "python3", "--version").removeprefix("Python ").split(".")[:2])
    table = script("compatibility").page()
    [system] = [line.split(" | ")[1] for line in table.splitlines() if line.startswith(f"| {service} | Debian")]
    release = output_of(service, "cat", "/etc/debian_version").partition(".")[0]
    assert system == f"Debian {release}, Python {version}"


def test_image_has_neither_ray_nor_opencv_nor_pip(service: str) -> None:
    script = (
        "from importlib.util import find_spec; print([n for n in ('ray', 'cv2', 'pip') if find_spec(n)]); "
        "from keras_matrix.models.inputs.pipelines.decode import *; print(chosen_decoder('auto'), resizer('auto')); "
        "chosen_decoder('cv2')"
    )
    refused = f"python -u -c \"{script}\" 2>&1 | sed -n -e 1,2p -e '$p'"
    found, decoder, error = output_of(service, "sh", "-c", refused).splitlines()
    assert (found, decoder) == ("[]", "simplejpeg pil")
    assert "decoder: cv2 is not installed; install keras-matrix[opencv] (into an image: EXTRAS=opencv" in error


def test_documented_size_is_the_images(service: str) -> None:
    """In addition to the base, within 3 %: ci/images prints it."""
    image, base = inspected_sizes(service)
    _, documented = script("compatibility").SIZES_MB[service]
    assert (image - base) / 1e6 == pytest.approx(documented, rel=0.03)


def inspected_sizes(service: str) -> tuple[int, int]:
    """The bytes of an image and of its base."""
    base = inspected(service)["Labels"]["org.opencontainers.image.base.name"]
    image_size, base_size = (
        int(docker("image", "inspect", "--format", "{{.Size}}", name).stdout) for name in (f"{IMAGES}:{service}", base)
    )
    return image_size, base_size


def test_no_image_contains_a_compiler(service: str) -> None:
    script = "for name in cc c++ gcc g++ clang clang++ tcc; do command -v $name; done; echo searched"
    assert output_of(service, "sh", "-c", script) == "searched\n"
