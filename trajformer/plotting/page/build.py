"""Assembles the page: style, script and data in one HTML file with a strict security policy.

The modules of `source/` are plain JavaScript. They are joined into one script in the order of
their imports, each in a separate function, because modules of a file cannot import each other.
Nothing is minified, so the code in the page is the code in the repository. The
policy allows this script and style by their hashes, and no request: text of scenes cannot run.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from trajformer.plotting.page import palette
from trajformer.plotting.page.attention import SHARE_STEP
from trajformer.plotting.page.encode import (
    HEADING_STEPS,
    LENGTH_STEP,
    PROBABILITY_STEP,
    EncodedScene,
    manoeuvre_labels,
)
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentKind

MAX_SCENES = 200  # of a page
_MAIN = "main"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def source_folder() -> Traversable:
    """The folder with the page's HTML, style and script."""
    return files("trajformer.plotting.page") / "source"


def module_order() -> list[str]:
    """Names of `main` and the modules that it needs, each after the modules that it imports."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in ordered:
            return
        for _, needed in _IMPORT.findall(_module_text(name)):
            add(needed)
        ordered.append(name)

    add(_MAIN)
    return ordered


def joined_script() -> str:
    """All modules as one script: the constant of a module's name holds its exports."""
    parts = ['"use strict";\n']
    for name in module_order():
        text = _module_text(name)
        exports = ", ".join(_EXPORT.findall(text))
        body = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = module_\2;\n", text))
        parts.append(f"const module_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n")
    return "".join(parts)


def _module_text(name: str) -> str:
    return (source_folder() / f"{name}.js").read_text("utf-8")


def write_page(path: Path, scenes: Iterable[EncodedScene], names: Sequence[str], title: str) -> int:
    """Write the page atomically and return its size in bytes.

    `names` are the forecast files of each scene, in their order; `title` is the heading.
    Raises OSError: the file cannot be written.
    """
    summaries: list[dict[str, Any]] = []
    head, tail = page_frame()
    with atomically(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(head)
        for number, scene in enumerate(scenes):
            file.write(_block(f"scene-{number}", scene.content))
            summaries.append(scene.summary)
        file.write(index_block(title=title, files=list(names), scenes=summaries))
        file.write(tail)
        size = file.tell()
    return size


def page_text(scene: EncodedScene, title: str) -> str:
    """The page of one scene without a list, to be shown inside another page."""
    head, tail = page_frame()
    index = index_block(title=title, files=[], scenes=[scene.summary], single=True)
    return head + _block("scene-0", scene.content) + index + tail


def page_frame(*, requests: bool = False) -> tuple[str, str]:
    """The page before and after its data; `requests` allows them to the origin of the page."""
    template = (source_folder() / "page.html").read_text("utf-8")
    head, tail = template.split("<!-- data -->")
    head = head.replace("POLICY", security_policy(requests=requests))
    return head.replace("/* style */", _style()), tail.replace("/* script */", joined_script())


def security_policy(*, requests: bool = False) -> str:
    """The content security policy of the page: its own script and style, and nothing else."""
    rules = [
        "default-src 'none'",
        f"script-src {_hash(joined_script())}",
        f"style-src {_hash(_style())}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if requests:
        rules.append("connect-src 'self'")
    return "; ".join(rules)


def index_block(**values: Any) -> str:
    """The block with the settings of the page, its title, files and list of scenes."""
    text = json.dumps({**page_settings(), **values}, separators=(",", ":"), allow_nan=False)
    return _block("index", zlib.compress(text.encode(), 9))


def _style() -> str:
    return (source_folder() / "style.css").read_text("utf-8")


def page_settings() -> dict[str, Any]:
    """Values that Python and the page share: colors, names of kinds and steps of numbers."""
    return {
        "palette": {"light": palette.LIGHT, "dark": palette.DARK},
        "fileDashes": palette.FILE_DASHES,
        "kinds": {int(kind): kind.name.lower().replace("_", " ") for kind in AgentKind},
        "manoeuvres": manoeuvre_labels(),
        "lengthStep": LENGTH_STEP,
        "headingSteps": HEADING_STEPS,
        "probabilityStep": PROBABILITY_STEP,
        "shareStep": SHARE_STEP,
    }


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _block(name: str, content: bytes) -> str:
    """A data block: browsers do not run this type, and its letters cannot end the element."""
    text = base64.b64encode(content).decode()
    return f'<script type="application/octet-stream" id="{name}">{text}</script>\n'
