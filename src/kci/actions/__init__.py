"""What kci's actions do on a runner: read inputs, call the rooms below, set outputs and summaries."""
