"""build.toml to `Build`: the schema, the editions, reading with places, discovery of kernels."""
