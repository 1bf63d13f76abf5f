"""The only place that speaks to the kernel past the standard library."""
