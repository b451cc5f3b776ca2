"""The whole job on one machine: plan, build what can be built here, merge, verify."""
