"""build.toml to `Build`: the schema, the editions, reading with source positions, discovery of kernels."""
