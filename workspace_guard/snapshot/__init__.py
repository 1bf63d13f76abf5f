"""What is there, and the bytes to put it back."""
