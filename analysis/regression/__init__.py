"""Base against new: the gate, and the kinds of regression. Pure."""
