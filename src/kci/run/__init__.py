"""What the jobs of a CI run do: records, the index of trees, the gate, releases."""
