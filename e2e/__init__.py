"""What runs Perdure on a real Kubernetes: preparation, the local cluster, scenarios and benches."""
