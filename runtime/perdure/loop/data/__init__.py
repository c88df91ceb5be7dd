"""Which sample goes where (sampling, pure), and the loader a script iterates (loader)."""
