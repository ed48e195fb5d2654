"""Transfer of weights from the trainer's memory to a receiver: packing, process groups, and the receiver's requests."""
