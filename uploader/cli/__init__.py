"""The command `uploader`: one small file a command."""
