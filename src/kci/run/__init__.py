"""The whole job, on one machine or on engines: plan, build, merge, verify."""
