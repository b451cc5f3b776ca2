"""Static checks of a kernel's Python and C++ sources."""
