"""Mistakes that people make in a build.toml: in its syntax (MISTAKES), and in what it says
(WRONG).
"""

from __future__ import annotations

HEAD = '[general]\nname = "relu"\nversion = 1\n'

MISTAKES = {
    "a key twice": HEAD + 'name = "gelu"\n',
    "a quoted key twice": HEAD + '"name" = "gelu"\n',
    "a table twice": HEAD + "[kernel.norm]\nsrc = []\n\n[kernel.norm]\nsrc = []\n",
    "a table where a value is": "[general]\nhub = 1\n\n[general.hub]\nbranch = 'main'\n",
    "an array without its end, at the end of the file": HEAD + 'backends = ["cuda",\n  "cpu"\n\n\n',
    "an array without its end, before a key": HEAD + 'backends = ["cuda"\nlicense = "MIT"\n',
    "an array without its end, before a table": '[torch]\nsrc = [\n  "a.cpp",\n\n[kernel.norm]\n'
    'backend = "cuda"\n',
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

GENERAL = """[general]
name = "relu"
version = 1
edition = 5
license = "MIT"
backends = ["cuda"]

[general.hub]
repo-id = "acme/relu"
"""
COMPONENT = """
[torch]
src = ["binding.cpp"]

[kernel.relu]
backend = "cuda"
depends = ["torch"]
src = ["csrc/relu.cu"]
"""
KERNEL = GENERAL + COMPONENT

FILES = (
    "binding.cpp",
    "csrc/relu.cu",
    "csrc/silu.cu",
    "torch-ext/helper.cpp",
    "torch-ext/relu/__init__.py",
)
"""The files that are there."""

WRONG = {
    "a version as a number": GENERAL + "\n[general.cuda]\nminver = 2.10\n" + COMPONENT,
    "a version as a longer number": GENERAL + "\n[general.cuda]\nmaxver = 12.60\n" + COMPONENT,
    "a version that is none": GENERAL + '\n[general.cuda]\nminver = ">=12.6"\n' + COMPONENT,
    "the bounds the wrong way round": GENERAL
    + '\n[general.cuda]\nminver = "13.0"\nmaxver = "12.6"\n'
    + COMPONENT,
    "an underscore in the name": KERNEL.replace('"relu"', '"silu_and_mul"', 1),
    "capitals in the name": KERNEL.replace('"relu"', '"SiluAndMul"', 1),
    "a key misspelled": KERNEL.replace("license =", "lisence ="),
    "a key in snake_case": KERNEL + 'cuda_capabilities = ["9.0"]\n',
    "a key of another backend": KERNEL + 'rocm-archs = ["gfx942"]\n',
    "no backend, and a key misspelled": KERNEL.replace('backend = "cuda"\n', "").replace(
        "depends =", "dependz ="
    ),
    "a backend misspelled": KERNEL.replace('["cuda"]', '["cdua"]'),
    "a backend in capitals": KERNEL.replace('["cuda"]', '["CUDA"]'),
    "the vendor for the backend": KERNEL.replace('["cuda"]', '["nvidia"]'),
    "a text for a list": KERNEL.replace('["cuda"]', '"cuda"'),
    "a text with commas for a list": KERNEL.replace('["cuda"]', '"cuda, rocm"'),
    "a backend without a component": KERNEL.replace('["cuda"]', '["cuda", "rocm"]'),
    "a component without its backend": KERNEL.replace('["cuda"]', '["cpu"]'),
    "an edition as a text": KERNEL.replace("edition = 5", 'edition = "5"'),
    "an edition that there is not": KERNEL.replace("edition = 5", "edition = 4"),
    "a version as a text": KERNEL.replace("version = 1", 'version = "1"'),
    "a version with a dot": KERNEL.replace("version = 1", "version = 1.0"),
    "no framework": GENERAL,
    "two frameworks": KERNEL + "\n[torch-noarch]\n",
    "a capability without its dot": KERNEL + 'cuda-capabilities = ["80"]\n',
    "a capability of the compiler": KERNEL + 'cuda-capabilities = ["sm_90"]\n',
    "a capability that there is not": KERNEL + 'cuda-capabilities = ["11.8"]\n',
    "a capability as a number": KERNEL + "cuda-capabilities = [9.0]\n",
    "a source misspelled": KERNEL.replace("csrc/relu.cu", "csrc/slu.cu"),
    "a source in another folder": KERNEL.replace("binding.cpp", "helper.cpp"),
    "a pattern for sources": KERNEL.replace("csrc/relu.cu", "csrc/*.cu"),
    "a source outside": KERNEL.replace("csrc/relu.cu", "../relu.cu"),
    "a dependency misspelled": KERNEL.replace('["torch"]', '["cutlas_4_0"]'),
    "a Python package in depends": KERNEL.replace('["torch"]', '["torch", "einops"]'),
    "a license misspelled": KERNEL.replace('"MIT"', '"Apache 2.0"'),
    "a repository without its owner": KERNEL.replace("acme/relu", "relu"),
    "a web address for a repository": KERNEL.replace(
        "acme/relu", "https://huggingface.co/acme/relu"
    ),
    "an address without its scheme": KERNEL.replace(
        "backends =", 'upstream = "github.com/acme/relu"\nbackends ='
    ),
    "a stable ABI for a backend that there is not": KERNEL + '\n[torch.stable-abi]\nnpu = "2.11"\n',
    "a stable ABI without its minor": KERNEL + '\n[torch.stable-abi]\ncuda = "3"\n',
}
"""A name for each mistake, and a file with it that is valid TOML."""
