"""What moves: toolchains, images, upstreams and the catalog; the pull requests that follow."""
