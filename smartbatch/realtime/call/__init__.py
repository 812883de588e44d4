"""Layers around one provider call: a call is a function, a layer turns a call into a call."""
