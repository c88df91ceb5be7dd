"""The language of `decide`: what is (Snapshot) and what to do (Decision). Frozen values without behaviour."""
