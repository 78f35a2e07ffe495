"""Base against new: the gate, and which kind of regression it is. Pure."""
