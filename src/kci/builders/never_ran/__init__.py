"""Commands that kci prints, or would run, and that nobody has seen running: XPU, Metal, macOS and Windows."""
