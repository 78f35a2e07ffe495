"""Commands about the machine and the shell."""
