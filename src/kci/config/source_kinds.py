"""What a source is, by its ending."""

from __future__ import annotations

CXX_ENDINGS = (".cpp", ".cc", ".cxx", ".c++")
CUDA_ENDINGS = (".cu",)
HIP_ENDINGS = (".cu", ".hip")
METAL_ENDINGS = (".metal",)
OBJC_ENDINGS = (".mm",)
C_ENDINGS = (".c",)
HEADER_ENDINGS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".inc", ".ipp", ".tpp", ".def")
SOURCE_ENDINGS = (*C_ENDINGS, *CXX_ENDINGS, *HIP_ENDINGS, *METAL_ENDINGS, *OBJC_ENDINGS, *HEADER_ENDINGS)
"""All of these: whatever a preprocessor reads."""
