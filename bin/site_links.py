"""A hook of mkdocs: links out of docs/, which work in a checkout, lead to the repository's page on the site."""

from __future__ import annotations

import re
from typing import Any

_OUT = re.compile(r"\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Rewrite them."""
    base = f"{config['repo_url'].rstrip('/')}/blob/main"
    return _OUT.sub(lambda found: f"]({base}/{found[1]})", markdown)
