"""The page of a generated video: the film, its prompt and its settings, in one file."""

from pathlib import Path

import yaml

from common.errors import DataError
from common.pages import FOREIGN, PLAY, film, page, settings_table, text
from common.storage import write_atomic


def write_video_page(video: Path) -> Path:
    """Writes the page beside `video`, as a `.html` of the same name, and returns its path.

    Raises `DataError` where the settings, which `vfm generate` writes beside, are missing.
    """
    settings_path = video.with_suffix(".yaml")
    if not settings_path.is_file():
        raise DataError(
            f"{video} has no settings beside it ({settings_path.name}): is it of `vfm generate`?"
        )
    settings = yaml.safe_load(settings_path.read_text())
    prompt = settings.get("prompt") or "No prompt"
    body = f"""<header class="hero wrap"><p class="eyebrow">vfm generate</p>
<h1 {FOREIGN}>{text(prompt)}</h1></header>
<main id="main">
<section class="wrap sync"><div class="films"><figure>{film(video, "generated video", "controls")}
<figcaption {FOREIGN}>{text(video.name)}</figcaption></figure></div>
{PLAY}</section>
<section class="wrap"><h2>Settings</h2><div class="settings">{settings_table(settings)}</div>
</section>
</main>"""
    html = page(title=str(prompt), body=body, styles=["films.css"], scripts=["films.js"], data={})
    path = video.with_suffix(".html")
    write_atomic(path, html.encode("utf-8"))
    return path
