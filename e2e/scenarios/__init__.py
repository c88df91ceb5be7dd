"""The promises, one by one, on a real cluster: each file is one story, told from outside."""
