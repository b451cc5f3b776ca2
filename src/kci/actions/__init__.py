"""The steps of kci's actions on a runner: read inputs, call the rooms below, set outputs and
summaries.
"""
