"""Makes the pages of the documentation that are generated or copied, and the old addresses of those that were joined.

Guarantee: a page follows from the code, and is the same under each supported Python and on each machine. A page that
was joined with another is still found at its old address, which leads to the new one, also to the heading asked for.

python -m ci.pages             make build/docs anew, docs/ with these pages, and build/zensical.toml, from which ci/docs
                               builds the site; SITE_URL is its address, which the sitemap and 404.html need
python -m ci.pages build/site  write the old addresses into a built site
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ci import compatibility, reference, reliability
from keras_matrix.uploader.bigquery import ddl

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "docs"

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": reference.commands_page,
    "reference/matrix-keys.md": reference.keys_page,
    "reference/statuses.md": reference.statuses_page,
    "reference/records.md": reference.records_page,
    "reference/python.md": reference.python_page,
    "reference/faults.md": reliability.page,
    "schema.md": ddl.page,
    "compatibility.md": compatibility.page,
}
"""The generated pages, by their paths in docs/."""

COPIED: Mapping[str, str] = {"contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
"""Pages of the site that are files in the root of the repository, where GitHub looks for them."""

MOVED: Mapping[str, str] = {
    "platforms.md": "commands.md#platforms",
    "image-models.md": "workloads.md#image-models-of-kerashub",
    "howto/reproduce.md": "trust.md#measure-a-stored-cell-again",
    "parity.md": "work.md#parity-of-the-backends",
    "howto/noisy-machine.md": "noise.md",
    "costmodels.md": "optimize.md#cost-models",
    "howto/add-a-workload.md": "design.md#add-a-workload",
    "howto/add-a-backend.md": "design.md#add-a-backend",
    "howto/add-a-metric.md": "design.md#add-a-metric",
    "howto/add-an-executor.md": "design.md#add-an-executor",
    "regression-kinds.md": "statistics.md#what-got-worse-by-name",
    "warehouse-trouble.md": "troubleshooting.md#when-an-upload-goes-wrong",
    "tutorials/gpu-box.md": "gpu.md",
    "tutorials/a-night-with-dashboards.md": "nightly.md",
    "openvino.md": "matrix.md#inference-on-openvino",
    "roofline.md": "traces.md#roofline",
    "howto/not-a-plain-fit.md": "workloads.md#not-a-plain-fitx-y",
    "datasets.md": "inputs.md#data-sets-of-images",
    "notify.md": "history.md#notifications",
    "queries.md": "python.md#query-the-warehouse",
}
"""Where the pages are now that docs/ had: the path of a page in docs/, with a heading if it is a part of that page."""

PUBLISHED = "../../deployments/github-pages"
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
UP = re.compile(rf"(?<=\]\()((?:\.\./)*)\.\./({'|'.join(COPIED.values())})")
OLD_ADDRESS = """<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<meta http-equiv="refresh" content="1; url={target}">
<script>location.replace("{page}" + (location.hash || "{heading}"))</script>
<p>This page is now <a href="{target}">here</a>.</p>
"""


def copied(name: str, root: Path = ROOT) -> str:
    """The text of a file in the root, with its links as they are from docs/."""

    def from_docs(match: re.Match[str]) -> str:
        target = match[1]
        if ":" in target or target == PUBLISHED:
            return target if ":" in target else "index.md"
        if target in COPIED.values():
            return target.lower()
        return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"

    return LINK.sub(from_docs, (root / name).read_text(encoding="utf-8"))


ALL_PAGES: Mapping[str, Callable[[], str]] = {
    **PAGES,
    **{name: partial(copied, source) for name, source in COPIED.items()},
}


def write(folder: Path = FOLDER, docs: Path = DOCS, pages: Mapping[str, Callable[[], str]] = ALL_PAGES) -> None:
    """Replace a folder by a copy of docs/ with the other pages. Raises `SystemExit` where docs/ has one of them."""
    for name in pages:
        if (docs / name).exists():
            raise SystemExit(f"docs/{name}: ci/pages.py generates this page for a build: remove the file")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(docs, folder)
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(UP.sub(lambda match: match[1] + match[2].lower(), text), encoding="utf-8")
    for name, text in pages.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text(), encoding="utf-8")


def write_old_addresses(site: Path, moved: Mapping[str, str] = MOVED) -> None:
    """Write a page for each one that was joined, which leads to where its text is."""
    for old, new in moved.items():
        page, hash_, heading = new.partition("#")
        up = "../" * old.count("/") + page.replace(".md", ".html")
        text = OLD_ADDRESS.format(target=up + hash_ + heading, page=up, heading=hash_ + heading)
        path = site / old.replace(".md", ".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def configuration(text: str, address: str) -> str:
    """zensical.toml as it is from build/, with the site's address. Raises `SystemExit` for what is no such address."""
    if address and not re.fullmatch(r"https?://[^\s/]+/(\S+/)?", address):
        raise SystemExit(f"SITE_URL: must begin with https:// and end with /, got {address}")
    site_url = f"[project]\nsite_url = {json.dumps(address)}\n" if address else "[project]\n"
    return text.replace('"build/', '"').replace("[project]\n", site_url, 1)


def main(arguments: Sequence[str]) -> int:
    """Make build/docs and build/zensical.toml; or, with the folder of a site, its old addresses."""
    if arguments:
        write_old_addresses(Path(arguments[0]))
        return 0
    text = configuration((ROOT / "zensical.toml").read_text(encoding="utf-8"), os.environ.get("SITE_URL", ""))
    write()
    (FOLDER.parent / "zensical.toml").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
