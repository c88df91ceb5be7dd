"""The promises, one by one, on a real cluster: each file is one story, seen from outside."""
