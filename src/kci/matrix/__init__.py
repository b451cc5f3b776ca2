"""Which variants a kernel has: names, archs, selection and tiers; `catalog` is the world as dated data."""
