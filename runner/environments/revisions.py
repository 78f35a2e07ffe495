"""Revisions of packages as a command names them, put into an environment on top of another one.

    keras@3.12.0                        a version, as pip finds it
    keras@dist/keras-3.13.0-....whl     a wheel
    keras@../keras                      a local checkout as it is now, with changes that no commit contains
    keras@../keras@v3.12.0              a commit, tag or branch of it
    keras@master, keras@pull/23288      of the package's own repository; also a tag, or a commit by its 40 digits
    keras@https://host/fork@branch      of another repository
    keras@3.12.0,keras-hub@0.24.0       several packages

Of a checkout only the package's own folder is taken, by `git archive` or as a copy: nothing is built, no hook runs, and
changes made to it later do not reach what is measured. Its code runs in cells alone, whose environment has none of the
user's variables. Limit: so only packages of Python files, such as Keras and KerasHub, can be measured from source.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from keras_matrix.records.backends import KERAS_HUB
from keras_matrix.records.host.inherited_environment import has_user
from keras_matrix.records.text import escaped, near
from keras_matrix.records.trees import walk
from keras_matrix.runner.environments import dated
from keras_matrix.runner.environments.commits import SUBJECT_LENGTH, git
from keras_matrix.runner.environments.layered import BaseEnvironment, Layer, layered
from keras_matrix.runner.environments.rebuilt import failure, made_once, pip
from keras_matrix.runner.errors import UsageError

REPOSITORIES = {
    "keras": "https://github.com/keras-team/keras",
    KERAS_HUB: "https://github.com/keras-team/keras-hub",
}
"""Where packages of Python files are developed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
_PULL = re.compile(r"pull/[1-9][0-9]{0,8}")
_SCHEMES = ("https", "file")
# No hook of the user's, no token, and no question on the terminal.
_PLAIN_GIT = ("-c", f"core.hooksPath={os.devnull}", "-c", "credential.helper=", "-c", "core.askPass=true")
EXAMPLES = "keras@3.12.0, keras@../keras, keras@master or keras@pull/23288"


@dataclass(frozen=True, slots=True)
class Revised:
    """An environment with some packages in other revisions, and a line on what each of these is."""

    folder: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where revisions are put: on top of which environment, in which cache; `flag` names them in messages."""

    flag: str
    base: BaseEnvironment
    cache: Path
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one revision adds to an environment: requirements for pip, or a folder to import from."""

    line: str
    requirements: tuple[str, ...] = ()
    path: str | None = None


def revised(text: str, place: Place) -> Revised:
    """Return the environment of the revisions in a text. Raises `UsageError`, or `CannotRebuild`."""
    pieces = [_piece(name, ref, place) for name, ref in _named(text, place.flag)]
    requirements = [requirement for piece in pieces for requirement in piece.requirements]
    paths = [piece.path for piece in pieces if piece.path is not None]
    folder = layered(Layer(requirements, paths, place.base), place.cache, place.say)
    return Revised(folder, tuple(piece.line for piece in pieces))


def _named(text: str, flag: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the revision of each package of a text."""
    names = set()
    for part in text.split(","):
        name, _, ref = part.strip().partition("@")
        if not _NAME.fullmatch(name) or not ref:
            raise UsageError(f"{flag}: must be packages with their revisions, such as {EXAMPLES}, got {part!r}")
        normal_name = str(canonicalize_name(name))
        if normal_name in names:
            raise UsageError(f"{flag}: must have one revision of {normal_name}, got two: {text}")
        names.add(normal_name)
        yield normal_name, ref


def _piece(name: str, ref: str, place: Place) -> _Piece:
    location, _, commit = ref.rpartition("@")
    for folder, folder_ref in ((ref, ""), (location, commit)):
        path = Path(folder).expanduser()
        if folder and path.suffix == ".whl" and path.is_file():
            return _wheel(name, path, place)
        if folder and path.is_dir():
            return _committed(name, path, folder_ref, place) if folder_ref else _copied(name, path, place)
    if urlsplit(location).scheme in _SCHEMES:
        return _fetched(name, location, commit, place)
    if ref.endswith(".whl") or ref.startswith((".", "/", "~")):
        raise UsageError(f"{place.flag}: {ref} does not exist; name a wheel or the folder of a checkout")
    version = _version(ref)
    if version is not None:
        return _installed(name, version, place)
    if name not in REPOSITORIES:
        raise UsageError(
            f"{place.flag}: {name}@{ref}: of {name} only a version, a wheel or a local folder can be measured; "
            f"branches and pull requests are those of {' and '.join(REPOSITORIES)}{near(name, REPOSITORIES)}"
        )
    return _fetched(name, REPOSITORIES[name], ref, place)


def _version(ref: str) -> str | None:
    """Return a text that is a version; None for another. `v3.12.0` is a tag."""
    try:
        Version(ref)
    except InvalidVersion:
        return None
    return ref if ref[0].isdigit() and "." in ref else None


def _installed(name: str, version: str, place: Place) -> _Piece:
    tool = pip(place.cache, place.say)
    listing = cache(partial(dated.listed, pip=tool, python=place.base.python, pre=True))
    installed_name = dated.installed_name(name, place.base.versions)
    versions = listing(installed_name).versions
    if Version(version) not in {Version(known.partition("+")[0]) for known in versions} | {*map(Version, versions)}:
        raise UsageError(f"{place.flag}: {name} has no version {version} for this Python{near(version, versions)}")
    requirements = dated.requirements(installed_name, version, place.base.versions, listing)
    return _Piece(f"{name} {version}", tuple(requirements))


def _wheel(name: str, path: Path, place: Place) -> _Piece:
    try:
        wheel_name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UsageError(f"{place.flag}: {path} is not named as a wheel is: {error}") from error
    if wheel_name != name:
        raise UsageError(f"{place.flag}: must be a wheel of {name}, got one of {wheel_name}: {path}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    folder = made_once(place.cache / f"wheel-{digest[:16]}", lambda folder: _copy_wheel(path, folder))
    line = f"{name} {version} from {path.name}, sha256:{digest[:10]}"
    return _Piece(line, (f"{name} @ {(folder / path.name).as_uri()}",))


def _copy_wheel(path: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copyfile(path, folder / path.name)


def _copied(name: str, folder: Path, place: Place) -> _Piece:
    """Return the package of a folder as it is now: the files that git knows or does not ignore, or all."""
    package = _package_in(name, folder, place.flag)
    files = sorted(_files_of(package))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(package.parent)}\0".encode(errors="surrogateescape"))
        digest.update(hashlib.sha256(file.read_bytes()).digest())

    def make(copy: Path) -> None:
        place.say(f"copying {package}: {copy}")
        for file in files:
            target = copy / file.relative_to(package.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    copy = made_once(place.cache / f"source-{digest.hexdigest()[:16]}", make)
    return _Piece(f"{name} of {folder}{_state_of(package)}, copied: sha256:{digest.hexdigest()[:10]}", path=str(copy))


def _state_of(package: Path) -> str:
    """Return the commit of a checkout, and whether its files differ from it."""
    head = git(package, "log", "--max-count=1", "--format=%h %s", check=False)
    if head.returncode:
        return ""
    changed = git(package, "status", "--porcelain", "--", ".").stdout.splitlines()
    state_text = f" with {len(changed)} changed files" if changed else ""
    return f" at {escaped(head.stdout.strip(), SUBJECT_LENGTH + 10)}{state_text}"


def _files_of(package: Path) -> Iterator[Path]:
    listed = git(package, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".", check=False)
    if listed.returncode:
        files = walk(package, lambda folder: folder.name != "__pycache__")
    else:
        files = (package / name for name in listed.stdout.split("\0") if name)
    yield from (file for file in files if file.is_file())


def _package_in(name: str, folder: Path, flag: str) -> Path:
    module = name.replace("-", "_")
    for parent in (folder, folder / "src"):
        if (parent / module / "__init__.py").is_file():
            return parent / module
    raise UsageError(f"{flag}: {folder} has no package {module}: neither {module}/__init__.py nor src/{module}")


def _committed(name: str, folder: Path, ref: str, place: Place) -> _Piece:
    found = git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", check=False)
    if found.returncode:
        names = git(folder, "for-each-ref", "--format=%(refname:short)", check=False).stdout.split()
        raise UsageError(f"{place.flag}: {folder} has no branch, tag or commit {ref!r}{near(ref, names)}")
    top = Path(git(folder, "rev-parse", "--show-toplevel").stdout.strip())
    return _archived(name, top, found.stdout.strip(), str(folder), place)


def _fetched(name: str, address: str, ref: str, place: Place) -> _Piece:
    """Return a commit of a repository elsewhere, fetched alone into one of the cache."""
    if has_user(address):
        raise UsageError(f"{place.flag}: the address of a repository must have no user, and no token is used")
    if not _REF.fullmatch(ref):
        raise UsageError(f"{place.flag}: must be a branch, tag, pull request or commit, got {ref!r}")
    repository = place.cache / f"repository-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    if not (repository / "HEAD").is_file():
        repository.mkdir(parents=True, exist_ok=True)
        git(repository, "init", "--quiet", "--bare")
    source = f"refs/{ref}/head" if _PULL.fullmatch(ref) else ref
    target = f"refs/measured/{hashlib.sha256(ref.encode()).hexdigest()[:16]}"
    place.say(f"fetching {ref} of {address}")
    fetched = git(
        repository,
        *_PLAIN_GIT,
        "fetch",
        "--quiet",
        "--depth=1",
        "--no-tags",
        address,
        f"+{source}:{target}",
        check=False,
    )
    if fetched.returncode:
        lines = fetched.stderr.strip().splitlines() or [""]
        if any("remote ref" in line or "unadvertised object" in line for line in lines):
            raise UsageError(
                f"{place.flag}: {address} has no branch, tag, pull request or commit {ref!r}; name a commit by its 40 "
                "digits, a pull request as pull/NUMBER"
            )
        raise failure(fetched.stderr)(f"{place.flag}: git fetches nothing from {address}: {lines[-1]}")
    sha = git(repository, "rev-parse", "--verify", f"{target}^{{commit}}").stdout.strip()
    return _archived(name, repository, sha, f"{ref} of {address}", place)


def _archived(name: str, repository: Path, sha: str, origin: str, place: Place) -> _Piece:
    """Return the package of a commit, its files alone in a folder of the cache."""
    module = name.replace("-", "_")
    parents = [at for at in ("", "src/") if not _lacks(repository, f"{sha}:{at}{module}/__init__.py")]
    if not parents:
        raise UsageError(
            f"{place.flag}: {origin} has no package {module}: neither {module}/__init__.py nor src/{module}"
        )
    package = f"{parents[0]}{module}"

    def make(folder: Path) -> None:
        folder.mkdir()
        archive = folder / "archive.tar"
        git(repository, "archive", "--format=tar", f"--output={archive}", sha, "--", package)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        archive.unlink()

    folder = made_once(place.cache / f"source-{name}-{sha}", make)
    subject = git(repository, "log", "--max-count=1", "--format=%s", sha).stdout.strip()[:SUBJECT_LENGTH]
    line = f"{name} of {origin}: commit {sha[:10]} {escaped(subject)}".rstrip()
    return _Piece(line, path=str(folder / parents[0]))


def _lacks(repository: Path, thing: str) -> bool:
    return bool(git(repository, "cat-file", "-e", thing, check=False).returncode)
