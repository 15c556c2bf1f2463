"""The page of one scene inside another page: the output of a cell in a notebook."""

import html

from trajformer.plotting.page.build import page_text
from trajformer.plotting.page.encode import encode_scene
from trajformer.scenes.scene import Scene

HEIGHT_PX = 480


def scene_html(scene: Scene) -> str:
    """An HTML element that shows a scene and plays it, without network: text of 150 kB.

    The page is in a frame with a separate origin, which cannot read or change the notebook.
    """
    page = page_text(encode_scene(scene), scene.scene_id)
    style = f"width:100%;height:{HEIGHT_PX}px;border:1px solid #ccc"
    content = html.escape(page, quote=True)
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{content}"></iframe>'
