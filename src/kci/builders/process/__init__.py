"""Programs: groups that end together, containers, what a machine has."""
