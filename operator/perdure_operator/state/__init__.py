"""The language of `decide`: what is (Snapshot) and what to do (Plan). Frozen values, no behaviour, no Kubernetes."""
