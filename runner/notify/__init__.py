"""Notifies people of changes for the worse, once each. Nothing outside of this folder sends anything for a history."""
