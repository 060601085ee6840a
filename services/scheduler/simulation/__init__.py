"""The scheduler core with a simulated device around it: what a policy would do with a workload, without a model."""
