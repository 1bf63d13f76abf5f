"""The roof: the command line. Reads the environment, prints, exits."""
