"""The workspace of one invocation, and the jobs of a run: legs, parts, runners, fingerprints,
affected variants.
"""
