"""Weights from the trainer's memory to the explorer's: asked for over a socket, sent by a collective.

    trainer                                      explorer
      outbox     holds versions                    inbox   asks, unpacks
        shelf    versions, packed, and numbers
        session  what is said  <--- line --->
                                <--- pair --->             the two as a process group: gloo or NCCL

Either may be killed at any moment. The other one hears the line break, and the next life of the one that
was killed is reached over a new one.
"""
