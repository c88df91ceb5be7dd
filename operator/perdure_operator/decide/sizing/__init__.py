"""How large a run ought to be, and could be: arithmetic on the spec. Questions only."""
