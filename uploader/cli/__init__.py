"""The command `uploader`, one module per subcommand."""
