"""Build the documentation site: `make docs`, or `python tools/build_docs.py --out site`.

Pages come from `docs/`, the reference from docstrings. The tutorial is executed, and one live page
is made from simulated scenes. A broken link or any other warning ends the build.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import yaml
from docs_site.pages import ROOT, Staging
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from trajformer import cli

SITE = Path(__file__).parent / "docs_site"
WEIGHTS = "pretrained:se2former_simulated"
LIVE_SCENES = 12
LIVE_PAGE = """---
hide: [navigation, toc]
---

# A live page

Simulated scenes with forecasts of all agents: press Space to play, drag to move, click an
agent. The [moving page](view.md) explains the keys. [In a window of its own](live.html).

<iframe src="../live.html" title="Simulated scenes" style="width: 100%; height: 44rem; \
border: 0"></iframe>
"""


def main() -> None:
    """Build the site in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    out = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        staging = Staging(work / "docs")
        staging.add_documents()
        staging.add_gallery()
        staging.add_commands()
        reference = staging.add_reference()
        print("executing the tutorial ...", flush=True)
        add_tutorial(staging.folder, work / "tutorial")
        print("making the live page ...", flush=True)
        add_live_page(staging.folder, work / "live")
        settings = write_settings(staging.folder, out, reference)
        # mkdocs-material prints a note about the next version of mkdocs, which it does not use.
        os.environ["NO_MKDOCS_2_WARNING"] = "1"
        command = [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--config-file",
            str(settings),
        ]
        subprocess.run(command, check=True)
    print(f"{out / 'index.html'}")


def add_tutorial(pages: Path, work: Path) -> None:
    """Execute the notebook in a folder, and add it with its outputs as a page."""
    work.mkdir()
    path = pages / "tutorial.ipynb"
    notebook = nbformat.read(path, as_version=4)
    # Commands of the notebook are found where this Python is.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Of a progress bar, only the last state is kept.
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(work)}},
        timeout=600,
        coalesce_streams=True,
    )
    client.execute()

    text, resources = MarkdownExporter().from_notebook_node(notebook)
    (pages / "tutorial.md").write_text(text, encoding="utf-8")
    for name, content in resources["outputs"].items():
        (pages / name).write_bytes(content)
    path.unlink()


def add_live_page(pages: Path, work: Path) -> None:
    """Simulate scenes, forecast them and add the page of `trajformer view`."""
    store = str(work / "store")
    forecasts = str(work / "forecasts.parquet")
    commands = [
        ["synthesize", str(work / "raw"), "--scenes", str(LIVE_SCENES), "--seed", "7"],
        ["preprocess", "argoverse2", str(work / "raw"), store],
        [
            "predict",
            "--checkpoint",
            WEIGHTS,
            "--store",
            store,
            "--split",
            "train",
            "--out",
            forecasts,
        ],
        ["view", store, "--forecasts", forecasts, "--out", str(pages / "live.html")],
    ]
    for command in commands:
        if cli.main(command):
            raise SystemExit(f"trajformer {' '.join(command)} failed")
    (pages / "live.md").write_text(LIVE_PAGE, encoding="utf-8")


def write_settings(pages: Path, out: Path, reference: list[dict[str, object]]) -> Path:
    """Settings of mkdocs with folders and the complete navigation; returns their file."""
    navigation = yaml.safe_load((SITE / "nav.yml").read_text(encoding="utf-8"))
    for entry in navigation:
        if "Results" in entry:
            entry["Results"] = results_pages(pages)
    navigation.append({"Reference": reference})
    settings = {
        "INHERIT": str(SITE / "mkdocs.yml"),
        "docs_dir": str(pages),
        "site_dir": str(out),
        "nav": navigation,
    }
    path = pages.parent / "mkdocs.yml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def results_pages(pages: Path) -> list[str]:
    """The overview of results and its pages."""
    names = sorted(path.name for path in (pages / "results").glob("*.md"))
    names.remove("index.md")
    return [f"results/{name}" for name in ["index.md", *names]]


if __name__ == "__main__":
    main()
