"""What one invocation is about, and the jobs of a run: legs, parts, runners, fingerprints, what is affected."""
