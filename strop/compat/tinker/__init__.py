"""The protocol of Tinker's SDK (`tinker`, version 0.38): training and sampling for its clients, over HTTP."""
