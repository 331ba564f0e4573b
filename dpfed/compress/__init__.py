"""What goes on the wire: public maps of an update, and what they cost."""
