"""A hook of mkdocs: on the site, links out of docs/ lead to the repository, and the first page has
no table of contents.
"""

from __future__ import annotations

import re
from typing import Any

_OUT = re.compile(r"\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the links; the transcript of the first page needs the room of the table of
    contents.
    """
    if page.is_homepage:
        page.meta["hide"] = ["toc"]
    base = f"{config['repo_url'].rstrip('/')}/blob/main"
    return _OUT.sub(lambda found: f"]({base}/{found[1]})", markdown)
