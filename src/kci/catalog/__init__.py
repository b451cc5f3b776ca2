"""What exists in the world, as dated data: toolchain rows, arch tables, runners, images."""
