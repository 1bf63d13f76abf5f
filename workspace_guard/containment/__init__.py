"""Run a command so that what it writes stays in its step, or is put back."""
