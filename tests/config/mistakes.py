"""Mistakes that people make in a build.toml, and a page of what kci says of each."""

from __future__ import annotations

HEAD = '[general]\nname = "relu"\nversion = 1\n'

MISTAKES = {
    "a key twice": HEAD + 'name = "gelu"\n',
    "a quoted key twice": HEAD + '"name" = "gelu"\n',
    "a table twice": HEAD + "[kernel.norm]\nsrc = []\n\n[kernel.norm]\nsrc = []\n",
    "a table where a value is": "[general]\nhub = 1\n\n[general.hub]\nbranch = 'main'\n",
    "an array without its end, at the end of the file": HEAD + 'backends = ["cuda",\n  "cpu"\n\n\n',
    "an array without its end, before a key": HEAD + 'backends = ["cuda"\nlicense = "MIT"\n',
    "an array without its end, before a table": '[torch]\nsrc = [\n  "a.cpp",\n\n[kernel.norm]\nbackend = "cuda"\n',
    "no comma": HEAD + 'backends = ["cuda" "cpu"]\n',
    "no comma between lines": HEAD + 'backends = [\n  "cuda"\n  "cpu"\n]\n',
    "typographic quotes": HEAD + "license = \u201cMIT\u201d\n",
    "typographic quotes in an array": HEAD + "backends = [\u201ccuda\u201d]\n",
    "two equals signs": HEAD + 'license == "MIT"\n',
    "a colon": HEAD + 'license: "MIT"\n',
    "Python's True": HEAD + "bundled = True\n",
    "YAML's yes": HEAD + "bundled = yes\n",
    "Python's None": HEAD + "license = None\n",
    "no quotes": HEAD + "license = MIT\n",
    "no quotes in an array": HEAD + "backends = [cuda, cpu]\n",
    "no value": HEAD + "license =\n",
    "a comment for a value": HEAD + "license = # later\n",
    "a string without its end": HEAD + 'license = "MIT\nbackends = []\n',
    "a string of several lines without its end": HEAD + 'license = """MIT\n',
    "a header without its end": HEAD + "[torch\nsrc = []\n",
    "two keys on a line": HEAD + 'license = "MIT" edition = 5\n',
    "a semicolon": HEAD + "edition = 5;\n",
    "a Windows path": HEAD + 'source = "csrc\\kernel.cu"\n',
    "an inline table over two lines": HEAD + "hub = { branch = 'main',\n  repo-id = 'a/b' }\n",
    "a key twice in an inline table": HEAD + "hub = { branch = 'a', branch = 'b' }\n",
    "one bracket too many": HEAD + "[torch]]\n",
    "a word alone": HEAD + "license\n",
    "a leading zero": HEAD + "edition = 05\n",
    "JSON": '{"general": {"name": "relu"}}\n',
    "YAML": "general:\n  name: relu\n",
}
"""A name for each mistake, and a file with it."""
